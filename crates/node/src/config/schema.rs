//! The buffering schema as XML (Hermes section 3.1.2, schema parser).
//!
//! The shape of a schema is checked here as [`XSD`] says; what its values mean, in `config::rules`,
//! for both syntaxes. A test keeps the two in agreement.

use crate::config::rules::{Item, KEYS, Part, RawRule};
use crate::config::{ConfigError, Result, read_up_to};
use roxmltree::{Attribute, Document, Node, ParsingOptions};
use std::fs::File;
use std::path::Path;

/// The XML Schema definition of buffering schemas.
pub const XSD: &str = include_str!("../../schema/forebay.xsd");

/// Largest file: what 128 rules with the longest patterns need, and as much again for comments.
const FILE_MAX: u64 = 256 << 10;
/// Elements, attributes and texts of a file: more than the largest schema has.
const NODES_MAX: u32 = 16 << 10;
/// Attributes of a file, as far as `=` tells: 128 rules with all keys have 2560.
const ATTRIBUTES_MAX: usize = 8 << 10;
/// Attributes of this namespace say where the XSD is.
const INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// Reads the rules in an XML file; `asked_by` is the place that named it.
pub(crate) fn load(path: &Path, asked_by: &str) -> Result<Vec<RawRule>> {
    let name = path.display().to_string();
    let content =
        File::open(path).and_then(|file| read_up_to(FILE_MAX, file)).map_err(|error| {
            ConfigError::new(asked_by, format_args!("{name}: {error}; give an existing file"))
        })?;
    let Some(content) = content else {
        return Err(ConfigError::new(name, "larger than 256 KiB; no schema is"));
    };
    let content = String::from_utf8(content)
        .map_err(|_| ConfigError::new(&name, "not UTF-8; save the file as UTF-8"))?;
    read(&content, &name)
}

/// Reads the rules in an XML text; `name` is its file.
pub(crate) fn read(content: &str, name: &str) -> Result<Vec<RawRule>> {
    // The parser compares each attribute with all others of its element.
    if content.bytes().filter(|&byte| byte == b'=').count() > ATTRIBUTES_MAX {
        return Err(ConfigError::new(name, "more attributes than any schema has"));
    }
    // Without a document type there are no entities, which could grow without bound.
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..Default::default() };
    let document = Document::parse_with_options(content, options).map_err(|error| {
        let at = error.pos();
        ConfigError::new(
            format_args!("{name}:{}:{}", at.row, at.col),
            format_args!("not valid XML: {error}"),
        )
    })?;
    let file = Schema { document: &document, name };
    let root = document.root_element();
    if root.tag_name().name() != "buffering-schema" || root.tag_name().namespace().is_some() {
        let problem = format_args!("is not a schema; write <buffering-schema version=\"1\">");
        return Err(file.error(root, root.tag_name().name(), problem));
    }
    file.check_version(root)?;
    let rules = file.children(root, "buffering-schema", &["rule"])?;
    rules.iter().enumerate().map(|(index, &rule)| file.rule(rule, index)).collect()
}

struct Schema<'d> {
    document: &'d Document<'d>,
    name: &'d str,
}

impl<'d> Schema<'d> {
    /// `FILE:LINE:COLUMN: WHAT`.
    fn place(&self, offset: usize, what: &str) -> String {
        let at = self.document.text_pos_at(offset);
        format!("{}:{}:{}: {what}", self.name, at.row, at.col)
    }

    fn error(
        &self,
        node: Node<'_, '_>,
        what: &str,
        problem: std::fmt::Arguments<'_>,
    ) -> ConfigError {
        ConfigError::new(self.place(node.range().start, what), problem)
    }

    fn check_version(&self, root: Node<'d, 'd>) -> Result<()> {
        let what = "buffering-schema/@version";
        for attribute in own_attributes(root) {
            let at = attribute.range().start;
            match (attribute.name(), attribute.namespace(), attribute.value()) {
                ("version", None, "1") => {}
                ("version", None, other) => {
                    let problem = format_args!("\"{other}\" is unknown; give one of \"1\"");
                    return Err(ConfigError::new(self.place(at, what), problem));
                }
                (name, ..) => {
                    let what = format!("buffering-schema/@{name}");
                    return Err(ConfigError::new(
                        self.place(at, &what),
                        "unknown attribute; known here: version",
                    ));
                }
            }
        }
        match root.attribute("version") {
            Some(_) => Ok(()),
            None => Err(self.error(root, what, format_args!("missing; add version=\"1\""))),
        }
    }

    /// The elements in `parent`, all of them among `known`; nothing else may be there.
    fn children(
        &self,
        parent: Node<'d, 'd>,
        what: &str,
        known: &[&str],
    ) -> Result<Vec<Node<'d, 'd>>> {
        let allowed = || match known {
            [] => "it has no content".to_owned(),
            known => format!("known here: <{}>", known.join(">, <")),
        };
        let mut found = Vec::new();
        for child in parent.children() {
            if child.is_element() {
                let tag = child.tag_name();
                if tag.namespace().is_some() || !known.contains(&tag.name()) {
                    let what = format!("{what}/{}", tag.name());
                    let problem = format_args!("unknown element; {}", allowed());
                    return Err(self.error(child, &what, problem));
                }
                found.push(child);
            } else if child.text().is_some_and(|text| child.is_text() && !text.trim().is_empty()) {
                let problem = format_args!("text is not expected; {}", allowed());
                return Err(self.error(child, what, problem));
            }
        }
        Ok(found)
    }

    fn rule(&self, rule: Node<'d, 'd>, index: usize) -> Result<RawRule> {
        let what = format!("rule[{index}]");
        let at = self.document.text_pos_at(rule.range().start);
        let mut items = Vec::new();
        self.items(rule, &what, Part::Rule, &mut items)?;
        let parts = self.children(rule, &what, &["match", "set"])?;
        for (index, &part) in parts.iter().enumerate() {
            let (name, kind) = match part.tag_name().name() {
                "match" => ("match", Part::Match),
                _ => ("set", Part::Set),
            };
            let what = format!("{what}/{name}");
            if parts[..index].iter().any(|other| other.tag_name() == part.tag_name()) {
                let problem =
                    format_args!("a rule has one <{name}>; join them, or write two rules");
                return Err(self.error(part, &what, problem));
            }
            if index > 0 && kind == Part::Match {
                return Err(self.error(
                    part,
                    &what,
                    format_args!("stands after <set>; put it first"),
                ));
            }
            self.children(part, &what, &[])?;
            self.items(part, &what, kind, &mut items)?;
        }
        if !parts.iter().any(|part| part.tag_name().name() == "set") {
            let problem = format_args!("missing; add <set .../>, which says what the rule does");
            return Err(self.error(rule, &format!("{what}/set"), problem));
        }
        Ok(RawRule {
            place: self.place(rule.range().start, &what),
            source: format!("{}:{}", self.name, at.row),
            folder: Path::new(self.name).parent().map(Path::to_owned),
            items,
        })
    }

    /// The attributes of an element, all of which must be known.
    fn items(
        &self,
        node: Node<'d, 'd>,
        what: &str,
        part: Part,
        items: &mut Vec<Item>,
    ) -> Result<()> {
        for attribute in own_attributes(node) {
            let place =
                self.place(attribute.range().start, &format!("{what}/@{}", attribute.name()));
            let name = attribute.name();
            let known = || KEYS.iter().filter(|key| key.part == part).map(|key| xml_name(key.name));
            if attribute.namespace().is_some() || !known().any(|known| known == name) {
                let known = known().collect::<Vec<_>>().join(", ");
                return Err(ConfigError::new(
                    place,
                    format_args!("unknown attribute; known here: {known}"),
                ));
            }
            let value = attribute.value().to_owned();
            items.push(Item { key: name.replace('-', "_"), value, place });
        }
        Ok(())
    }
}

/// XML writes the keys of TOML with hyphens.
fn xml_name(key: &str) -> String {
    key.replace('_', "-")
}

/// The attributes of an element without those that only help validators.
fn own_attributes<'d>(node: Node<'d, 'd>) -> impl Iterator<Item = Attribute<'d, 'd>> {
    node.attributes().filter(|attribute| attribute.namespace() != Some(INSTANCE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::rules::{Values, interpret};
    use crate::config::{Rule, Speed, Tier, TierKind};
    use forebay_placement::schema::{
        Consistency, Durability, Lifetime, Mode, RankRange, Settings, Trigger,
    };
    use forebay_placement::{PolicyId, Random};
    use std::process::Command;

    /// The schema of docs/schema.md, which shows every key.
    fn example() -> String {
        let page = include_str!("../../../../docs/schema.md");
        let start = page.find("```xml\n").expect("the page shows a schema") + 7;
        page[start..][..page[start..].find("```").unwrap()].to_owned()
    }

    fn tiers() -> Vec<Tier> {
        let tier = |name: &str| Tier {
            name: name.into(),
            kind: TierKind::Ram,
            capacity: 0,
            emulate: None,
            speed: Speed::default(),
            quota: 0,
        };
        vec![tier("ram"), tier("nvme")]
    }

    fn rules(text: &str) -> Result<Vec<Rule>> {
        read(text, "s.xml")?.iter().map(|raw| interpret(raw, &tiers())).collect()
    }

    fn with(rules: &str) -> String {
        format!("<buffering-schema version=\"1\">\n{rules}\n</buffering-schema>")
    }

    #[track_caller]
    fn refuses(text: &str, message: &str) {
        assert_eq!(rules(text).unwrap_err().to_string(), message, "{text}");
    }

    #[test]
    fn everything_can_be_said() {
        let text = with(
            "<rule name='ckpt'>\n<match path='**/*.{h5,nc}' size-min='1MiB' size-max='10GiB' \
             user='0' process='lmp*' ranks='0-1023:64,7'/>\n\
             <set policy='user-defined' tier='nvme' pin='true' mode='async' trigger='per-file' \
             priority='200' keep-versions='2' durability='store' reserve='1KiB'/></rule>\n\
             <rule><set mode='bypass' expires='90min'/></rule>\
             <rule><match path='a'/><set overwrite-when-read='true' consistency='commit'/></rule>\
             <rule><match dataset='/fields/*'/><set tier='ram' pin='true' priority='7'/></rule>",
        );
        let expected = Rule {
            name: "ckpt".into(),
            source: "s.xml:2".into(),
            path: "**/*.{h5,nc}".into(),
            size_min: 1 << 20,
            size_max: Some(10 << 30),
            dataset: String::new(),
            user: Some(0),
            process: "lmp*".into(),
            ranks: vec![
                RankRange { first: 0, last: 1023, step: 64 },
                RankRange { first: 7, last: 7, step: 1 },
            ],
            predictor: String::new(),
            set: Settings {
                policy: PolicyId::named("user-defined"),
                tier: Some(1),
                pin: true,
                mode: Some(Mode::Async),
                trigger: Some(Trigger::PerFile),
                priority: 200,
                lifetime: Some(Lifetime::KeepVersions(2)),
                durability: Some(Durability::Store),
                reserve: 1024,
                consistency: None,
            },
        };
        let found = rules(&text).unwrap();
        assert_eq!(found[0], expected);
        assert_eq!(found[1].set.lifetime, Some(Lifetime::Expires(5_400_000_000_000)));
        assert_eq!(found[2].set.lifetime, Some(Lifetime::OverwriteWhenRead));
        assert_eq!(found[2].set.consistency, Some(Consistency::Commit));
        assert_eq!((&*found[3].dataset, found[3].set.tier), ("/fields/*", Some(0)));
        assert_eq!(rules(&with("")).unwrap(), []);
    }

    #[test]
    fn errors_name_line_element_and_allowed_values() {
        let root = "<buffering-schema version=\"1\">";
        for (rules, message) in [
            (
                "<rule><set policy='fast'/></rule>",
                "2:12: rule[0]/set/@policy: \"fast\" is unknown; give one of \"max-bandwidth\", \
                 \"max-locality\", \"hot-data\", \"user-defined\", \"noop\", \"random\"",
            ),
            (
                "<rule><set\n tier='tape'/></rule>",
                "3:2: rule[0]/set/@tier: \"tape\" is unknown; give one of \"ram\", \"nvme\"",
            ),
            (
                "<rule><set consistency='open'/></rule>",
                "2:12: rule[0]/set/@consistency: \"open\" is unknown; give one of \"strict\", \
                 \"commit\"",
            ),
            (
                "<rule><match path='a' process='b'/><set consistency='commit'/></rule>",
                "2:41: rule[0]/set/@consistency: goes with path alone, as all nodes have to find \
                 the same for a file; remove it, or s.xml:2:23: rule[0]/match/@process",
            ),
            (
                "<rule><match dataset='/f/*'/><set tier='ram' keep-versions='2'/></rule>",
                "2:46: rule[0]/set/@keep-versions: is of whole files, and s.xml:2:14: \
                 rule[0]/match/@dataset asks for a part of one; a rule with a dataset sets \
                 policy, tier, pin, priority",
            ),
            (
                "<rule><set mode='scratch' consistency='commit'/></rule>",
                "2:27: rule[0]/set/@consistency: has no meaning with mode scratch; remove one",
            ),
            (
                "<rule><set pin='yes'/></rule>",
                "2:12: rule[0]/set/@pin: \"yes\" is unknown; give one of \"true\", \"false\"",
            ),
            (
                "<rule><set priority='256'/></rule>",
                "2:12: rule[0]/set/@priority: \"256\" cannot be read; give a number from 0 to 255",
            ),
            (
                "<rule><match path='a['/><set/></rule>",
                "2:14: rule[0]/match/@path: \"a[\" is no pattern: '[' is not closed",
            ),
            (
                "<rule><match path='../a'/><set/></rule>",
                "2:14: rule[0]/match/@path: \"../a\" has \".\" or \"..\" in it, which no canonical \
                 path has; remove it",
            ),
            (
                "<rule><match size-min='5 apples'/><set/></rule>",
                "2:14: rule[0]/match/@size-min: \"5 apples\" cannot be read; give a size such as \
                 \"64MiB\", in B, KB, MB, GB, TB, KiB, MiB, GiB or TiB",
            ),
            (
                "<rule><match size-min='2KiB' size-max='1KiB'/><set/></rule>",
                "2:14: rule[0]/match/@size-min: 2048 is more than the largest size, 1024; no file \
                 matches",
            ),
            (
                "<rule><match user='no such user'/><set/></rule>",
                "2:14: rule[0]/match/@user: there is no user \"no such user\" on this machine; give \
                 a user's name or number",
            ),
            (
                "<rule><match ranks='9-8'/><set/></rule>",
                "2:14: rule[0]/match/@ranks: \"9-8\" cannot be read; give up to 8 ranks or ranges \
                 such as \"0,8-15,0-1023:64\" (first-last:step), separated by commas",
            ),
            (
                "<rule><set/></rule><rule><match size='1'/><set/></rule>",
                "2:33: rule[1]/match/@size: unknown attribute; known here: path, size-min, size-max, \
                 dataset, user, process, ranks",
            ),
            ("<rule id='1'><set/></rule>", "2:7: rule[0]/@id: unknown attribute; known here: name"),
            (
                "<rule><set size_min='1'/></rule>",
                "2:12: rule[0]/set/@size_min: unknown attribute; known here: policy, tier, pin, \
                 mode, trigger, priority, keep-versions, overwrite-when-read, expires, durability, \
                 reserve, consistency, predictor",
            ),
            (
                "<rule><when/></rule>",
                "2:7: rule[0]/when: unknown element; known here: <match>, <set>",
            ),
            ("<rules/>", "2:1: buffering-schema/rules: unknown element; known here: <rule>"),
            (
                "<rule>all<set/></rule>",
                "2:7: rule[0]: text is not expected; known here: <match>, <set>",
            ),
            (
                "<rule><set><a/></set></rule>",
                "2:12: rule[0]/set/a: unknown element; it has no content",
            ),
            ("<rule/>", "2:1: rule[0]/set: missing; add <set .../>, which says what the rule does"),
            (
                "<rule><set/><match/></rule>",
                "2:13: rule[0]/match: stands after <set>; put it first",
            ),
            (
                "<rule><set/><set/></rule>",
                "2:13: rule[0]/set: a rule has one <set>; join them, or write two rules",
            ),
            (
                "<rule><set expires='1s' keep-versions='2'/></rule>",
                "2:25: rule[0]/set/@keep-versions: a rule has one lifetime; keep this or s.xml:2:12: \
                 rule[0]/set/@expires",
            ),
            (
                "<rule><set mode='bypass' tier='ram'/></rule>",
                "2:26: rule[0]/set/@tier: has no meaning with mode bypass; remove one",
            ),
            (
                "<rule><set policy='user-defined'/></rule>",
                "2:12: rule[0]/set/@policy: user-defined places data in the rule's tier; add a tier",
            ),
            (
                "<rule><set policy='hot-data' tier='ram'/></rule>",
                "2:12: rule[0]/set/@policy: hot-data chooses the tier itself; remove the tier, or \
                 say user-defined",
            ),
        ] {
            refuses(&format!("{root}\n{rules}</buffering-schema>"), &format!("s.xml:{message}"));
        }
        refuses("<a/>", "s.xml:1:1: a: is not a schema; write <buffering-schema version=\"1\">");
        let version = "s.xml:1:1: buffering-schema/@version: missing; add version=\"1\"";
        refuses("<buffering-schema/>", version);
        refuses(
            "<buffering-schema version='2'/>",
            "s.xml:1:19: buffering-schema/@version: \"2\" is unknown; give one of \"1\"",
        );
        let broken = rules(&with("<rule><set></rule>")).unwrap_err().to_string();
        assert!(broken.starts_with("s.xml:2:12: not valid XML: "), "{broken}");
    }

    #[test]
    fn a_tier_is_the_policy_of_the_user() {
        let found = rules(&with("<rule><set tier='ram'/></rule>")).unwrap();
        assert_eq!(found[0].set.policy, PolicyId::named("user-defined"));
        assert_eq!(found[0].set.tier, Some(0));
    }

    /// Entities that grow, elements that nest, attributes without number: refused, and soon.
    #[test]
    fn hostile_texts_are_bounded() {
        let laughs = "<!DOCTYPE a [<!ENTITY b 'ha'><!ENTITY c '&b;&b;&b;&b;&b;&b;&b;&b;'>]>\
                      <buffering-schema version='1'>&c;</buffering-schema>";
        assert!(rules(laughs).unwrap_err().to_string().contains("not valid XML"));
        assert!(rules(&with(&"<rule>".repeat(40_000))).is_err());
        assert!(rules(&with(&"<rule><set/></rule>".repeat(13_000))).is_err());
        let many: String = (0..20_000).map(|n| format!("a{n}='' ")).collect();
        refuses(&format!("<a {many}/>"), "s.xml: more attributes than any schema has");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.xml");
        std::fs::write(&file, with(&" ".repeat(256 << 10))).unwrap();
        let error = load(&file, "here").err().unwrap().to_string();
        assert!(error.ends_with("s.xml: larger than 256 KiB; no schema is"), "{error}");
        let missing = load(Path::new("/no/such.xml"), "here").err().unwrap().to_string();
        assert!(missing.starts_with("here: /no/such.xml: No such file"), "{missing}");
        std::fs::write(&file, b"<a>\xff</a>").unwrap();
        assert!(load(&file, "here").err().unwrap().to_string().contains("not UTF-8"));
    }

    /// Whatever is done to a schema, it is read or refused with a place; nothing panics.
    #[test]
    fn mutations_are_read_or_refused() {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
        println!("FOREBAY_SEED={seed}");
        let mut random = Random::new(seed);
        let example = example();
        let pieces: Vec<&str> =
            example.split_inclusive(&['<', '>', '=', '"', '-', ' '][..]).collect();
        let (mut good, mut bad) = (0, 0);
        for _ in 0..5_000 {
            let mut text = example.clone().into_bytes();
            for _ in 0..=random.below(4) {
                let at = random.index(text.len());
                let end = (at + random.index(20)).min(text.len());
                match random.below(4) {
                    0 => text[at] = random.below(256) as u8,
                    1 => drop(text.drain(at..end)),
                    2 => {
                        let piece = pieces[random.index(pieces.len())];
                        text.splice(at..at, piece.bytes());
                    }
                    _ => {
                        let copy = text[at..end].to_vec();
                        let to = random.index(text.len());
                        text.splice(to..to, copy);
                    }
                }
            }
            match rules(&String::from_utf8_lossy(&text)) {
                Ok(rules) => {
                    good += 1;
                    assert!(rules.len() <= 128);
                }
                Err(error) => {
                    bad += 1;
                    assert!(error.to_string().starts_with("s.xml:"), "{error}");
                }
            }
        }
        assert!(good > 100 && bad > 100, "{good} read, {bad} refused");
    }

    // The XSD is for editors and validators; what counts is what is read here. They must agree.

    /// Finds the definition `<xs:KIND name="NAME">` in the XSD.
    fn definition<'d>(xsd: &'d Document<'d>, kind: &str, name: &str) -> Node<'d, 'd> {
        xsd.root_element()
            .children()
            .find(|node| node.tag_name().name() == kind && node.attribute("name") == Some(name))
            .unwrap_or_else(|| panic!("the XSD defines no {kind} {name}"))
    }

    fn facets<'d>(node: Node<'d, 'd>, facet: &str) -> Vec<&'d str> {
        node.descendants()
            .filter(|node| node.tag_name().name() == facet)
            .map(|node| node.attribute("value").unwrap())
            .collect()
    }

    #[test]
    fn the_xsd_agrees_with_the_table_of_keys() {
        let xsd = Document::parse(XSD).unwrap();
        for (part, element) in [(Part::Rule, "rule"), (Part::Match, "match"), (Part::Set, "set")] {
            let listed: Vec<_> = definition(&xsd, "complexType", element)
                .children()
                .filter(|node| node.tag_name().name() == "attribute")
                .map(|node| (node.attribute("name").unwrap(), node.attribute("type").unwrap()))
                .collect();
            let known: Vec<_> =
                KEYS.iter().filter(|key| key.part == part).map(|key| xml_name(key.name)).collect();
            assert!(listed.iter().map(|(name, _)| name).eq(&known), "{listed:?} {known:?}");
            for (name, type_name) in listed {
                let key = KEYS.iter().find(|key| xml_name(key.name) == name).unwrap();
                if key.values == Values::Text {
                    assert_eq!(type_name, "xs:string");
                    continue;
                }
                let values = definition(&xsd, "simpleType", type_name);
                match key.values {
                    Values::Policy => {
                        assert!(forebay_placement::names().eq(facets(values, "enumeration")));
                    }
                    Values::OneOf(names) => assert_eq!(facets(values, "enumeration"), names),
                    Values::Boolean => assert_eq!(facets(values, "enumeration"), ["true", "false"]),
                    Values::Number { min, max } => {
                        assert_eq!(facets(values, "minInclusive"), [min.to_string()]);
                        assert_eq!(facets(values, "maxInclusive"), [max.to_string()]);
                    }
                    Values::Pattern(longest) => {
                        assert_eq!(facets(values, "maxLength"), [longest.to_string()]);
                    }
                    _ => assert!(!facets(values, "pattern").is_empty() || type_name == "user"),
                }
            }
        }
        let element = definition(&xsd, "element", "buffering-schema");
        let most = element.descendants().find_map(|node| node.attribute("maxOccurs")).unwrap();
        assert_eq!(most, forebay_placement::schema::RULES_MAX.to_string());
    }

    /// Whether xmllint accepts the text; `None` without xmllint.
    fn validates(text: &str) -> Option<bool> {
        let folder = tempfile::tempdir().unwrap();
        let (xsd, file) = (folder.path().join("forebay.xsd"), folder.path().join("s.xml"));
        std::fs::write(&xsd, XSD).unwrap();
        std::fs::write(&file, text).unwrap();
        let output =
            Command::new("xmllint").args(["--noout", "--schema"]).arg(&xsd).arg(&file).output();
        match output {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let verdict = said.trim_end().ends_with(" validates");
                assert!(verdict || said.contains("fails to validate"), "{said}");
                Some(verdict)
            }
            Err(_) => {
                eprintln!("*** SKIPPED: xmllint is not installed (libxml2-utils) ***");
                None
            }
        }
    }

    #[test]
    fn xmllint_and_this_parser_say_the_same() {
        let good = [
            example(),
            with(""),
            with("<rule><set/></rule>"),
            with("<rule name=''><match/><set tier='ram' pin='false' priority=' 7 '/></rule>"),
            with(
                "<rule><match size-min='0.5 TB' ranks='0,8-15,0-1023:64'/><set expires='2min'/></rule>",
            ),
            with("<rule><match path='a'/><set/></rule>").replace(
                " version",
                " xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance' \
                 xsi:noNamespaceSchemaLocation='forebay.xsd' version",
            ),
        ];
        for text in good {
            assert!(rules(&text).is_ok(), "{text}: {:?}", rules(&text));
            assert_ne!(validates(&text), Some(false), "{text}");
        }
        for rule in [
            "<rule/>",
            "<rule><set/><match/></rule>",
            "<rule><match/><match/><set/></rule>",
            "<rule><set/>text</rule>",
            "<rule><set><a/></set></rule>",
            "<rule><set policy='fast'/></rule>",
            "<rule><set priority='256'/></rule>",
            "<rule><set keep-versions='0'/></rule>",
            "<rule><set pin='1'/></rule>",
            "<rule><set unknown=''/></rule>",
            "<rule><set expires='soon'/></rule>",
            "<rule><match path=''/><set/></rule>",
            "<rule><match size-min='-1'/><set/></rule>",
            "<rule><match ranks=''/><set/></rule>",
            "<rules/>",
        ] {
            assert!(rules(&with(rule)).is_err(), "{rule}");
            assert_ne!(validates(&with(rule)), Some(true), "{rule}");
        }
        let long = with(&format!("<rule><match path='{}'/><set/></rule>", "x".repeat(448)));
        assert!(rules(&long).is_err() && validates(&long) != Some(true));
    }
}
