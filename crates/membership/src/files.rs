//! The files of a group's folder on the backing store: their names, and the texts in them. What
//! reads and writes them is the node manager's.
//!
//! - `view.N`: the [`View`] number N, from 1. It is written beside and gets this name by `link()`,
//!   which one of many wins.
//! - `member.N.I.L`: the [`Card`] of node N's life I, which has looked L times. It is written
//!   beside and gets this name by `link()`, with L = 0; each look renames it to the next L.
//! - `left.N.I`: node N's life I has ended by itself. It is the card of that life, renamed: others
//!   do not look for it, and later lives still know its number.
//! - `plea.V.N`: node N pleads in view V. It is empty, and made by an exclusive open: a file
//!   without content is never half there.
//!
//! The number of a look is in the name, and not in the content, so that a look is one change of the
//! folder and writes nothing, and so that the names alone say of all members whether they look. The
//! rename comes before the rest of a look: a client of NFS then knows that what it has cached of
//! the folder is old.
//!
//! Texts have a first line that names what they are and the version of their form, and a last line
//! with the CRC32C of all before. There is one text for each value, so any other is refused.

use crate::node::{Incarnation, Member, NodeId};
use crate::views::{Found, GivenUp, Seat, View};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;

/// The version of the form of texts.
const VERSION: u32 = 1;
/// The largest address of a node manager, in bytes.
const ADDRESS_MAX: usize = 512;
/// The longest name of a host, in bytes.
const HOST_MAX: usize = 255;
/// The longest terms, in bytes.
const TERMS_MAX: usize = 255;

/// A file of a group's folder, by its name. `Display` writes the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupFile {
    /// The view of this number.
    View(u32),
    /// A life of a node, and how often it has looked.
    Member(Member, u64),
    /// A life of a node that has ended by itself, and has left nothing behind.
    Left(Member),
    /// A plea in the view of this number, by this node.
    Plea(u32, NodeId),
}

impl GroupFile {
    /// Of a name in the group's folder; `None` if it is that of something else.
    pub fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let file = match parts.next()? {
            "view" => Self::View(number(parts.next()?)?),
            "member" => {
                let node = NodeId(number(parts.next()?)?);
                let incarnation = Incarnation(number(parts.next()?)?);
                Self::Member(Member { node, incarnation }, number(parts.next()?)?)
            }
            "left" => {
                let node = NodeId(number(parts.next()?)?);
                let incarnation = Incarnation(number(parts.next()?)?);
                Self::Left(Member { node, incarnation })
            }
            "plea" => Self::Plea(number(parts.next()?)?, NodeId(number(parts.next()?)?)),
            _ => return None,
        };
        let has_view = !matches!(file, Self::View(0) | Self::Plea(0, _));
        (has_view && parts.next().is_none()).then_some(file)
    }
}

impl fmt::Display for GroupFile {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::View(view) => write!(f, "view.{view}"),
            Self::Member(Member { node, incarnation }, looks) => {
                write!(f, "member.{}.{}.{looks}", node.0, incarnation.0)
            }
            Self::Left(Member { node, incarnation }) => {
                write!(f, "left.{}.{}", node.0, incarnation.0)
            }
            Self::Plea(view, node) => write!(f, "plea.{view}.{}", node.0),
        }
    }
}

impl Found {
    /// What a look has found: the newest view, and the names of the folder, in any order, as they
    /// were listed after it was read.
    pub fn of_folder(newest: Option<View>, names: impl IntoIterator<Item = GroupFile>) -> Self {
        let Some(view) = newest else { return Self::default() };
        let (mut pleas, mut left) = (Vec::new(), Vec::new());
        let mut looks = BTreeMap::<Member, u64>::new();
        for file in names {
            match file {
                GroupFile::Plea(number, node) if number == view.number => {
                    pleas.extend(view.seat_of(node).map(|seat| seat.member.node));
                }
                // Not another life of its node: its looks do not keep the view alive.
                GroupFile::Member(member, number) if view.has(member) => {
                    // A listing during a rename may have both names.
                    let most = looks.entry(member).or_default();
                    *most = number.max(*most);
                }
                GroupFile::Left(member) if view.has(member) => left.push(member),
                _ => {}
            }
        }
        pleas.sort_unstable();
        pleas.dedup();
        let looks = looks.into_values().fold(0, u64::wrapping_add);
        Self { newest: Some(Arc::new(view)), pleas, looks, left }
    }
}

/// What a node manager says of itself in the group's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    member: Member,
    address: String,
    host: String,
    /// Empty, and not in the text, where there are none.
    terms: String,
}

impl Card {
    /// Of this life of a node, with the address at which others reach its manager and the name of
    /// its host.
    ///
    /// # Errors
    /// The address has not 1 to 512 bytes, the name not 1 to 255, or one of them has others than
    /// visible characters of ASCII.
    pub fn new(member: Member, address: &str, host: &str) -> Result<Self, TextError> {
        let is_good = |text: &str, max| {
            (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match (is_good(address, ADDRESS_MAX), is_good(host, HOST_MAX)) {
            (false, _) => Err(TextError::Address),
            (_, false) => Err(TextError::Host),
            _ => {
                let (address, host, terms) = (address.to_owned(), host.to_owned(), String::new());
                Ok(Self { member, address, host, terms })
            }
        }
    }

    /// The same with what all nodes of the group have to have alike; none if empty.
    ///
    /// # Errors
    /// More than 255 bytes, or others than visible characters of ASCII.
    pub fn with_terms(self, terms: &str) -> Result<Self, TextError> {
        let is_good = terms.len() <= TERMS_MAX && terms.bytes().all(|byte| byte.is_ascii_graphic());
        match is_good {
            true => Ok(Self { terms: terms.to_owned(), ..self }),
            false => Err(TextError::Terms),
        }
    }

    /// Whose it is.
    pub fn member(&self) -> Member {
        self.member
    }

    /// Where others reach it, in the transport's own form.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The name of its host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// What all nodes of the group have to have alike, in the managers' own form; empty if nothing
    /// is said.
    pub fn terms(&self) -> &str {
        &self.terms
    }

    /// The content of its file.
    pub fn to_text(&self) -> String {
        let Member { node, incarnation } = self.member;
        let Self { address, host, terms, .. } = self;
        let mut lines =
            format!("member {} {}\naddress {address}\nhost {host}\n", node.0, incarnation.0);
        if !terms.is_empty() {
            writeln!(lines, "terms {terms}").expect("a String takes all");
        }
        sealed("member", &lines)
    }

    /// Of the content of the file of this life of a node.
    ///
    /// # Errors
    /// It is another text, has another version, is damaged, or says another member.
    pub fn of_text(of: Member, text: &[u8]) -> Result<Self, TextError> {
        let mut lines = Lines::of("member", text)?;
        let [node, incarnation] = lines.words("member")?;
        let member =
            Member { node: NodeId(lines.number(node)?), incarnation: lines.life(incarnation)? };
        let [address] = lines.words("address")?;
        let [host] = lines.words("host")?;
        let mut card = Self::new(member, address, host)?;
        if !lines.rest.is_empty() {
            let [terms] = lines.words("terms")?;
            if terms.is_empty() {
                return Err(TextError::Line(lines.line));
            }
            card = card.with_terms(terms)?;
        }
        lines.end()?;
        match member == of {
            true => Ok(card),
            false => Err(TextError::Other(GroupFile::Member(member, 0))),
        }
    }
}

impl View {
    /// The content of its file.
    pub fn to_text(&self) -> String {
        let mut lines = format!("view {}\n", self.number);
        let mut write = |word, Member { node, incarnation }: Member, number| {
            writeln!(lines, "{word} {} {} {number}", node.0, incarnation.0)
                .expect("a String takes all");
        };
        self.seats.iter().for_each(|seat| write("seat", seat.member, seat.since));
        self.lost.iter().for_each(|seat| write("lost", seat.member, seat.since));
        self.given_up.iter().for_each(|given| write("given-up", given.member, given.view));
        sealed("view", &lines)
    }

    /// Of the content of the file of the view of this number.
    ///
    /// # Errors
    /// It is another text, has another version, is damaged, or is no view of this number: with one
    /// seat at least, by ascending node, each since a view from 1 to this one; then what may be
    /// lost, and what was given up, in the same way.
    pub fn of_text(of: u32, text: &[u8]) -> Result<Self, TextError> {
        let mut lines = Lines::of("view", text)?;
        let [number] = lines.words("view")?;
        let number = lines.number(number)?;
        let mut view = Self { number, ..Self::default() };
        let is_of = |view: u32| (1..=number).contains(&view);
        while let Some((member, since)) = lines.of_member("seat")? {
            let is_next = view.seats.last().is_none_or(|last| last.member.node < member.node);
            lines.expect(is_next && is_of(since))?;
            view.seats.push(Seat { member, since });
        }
        while let Some((member, since)) = lines.of_member("lost")? {
            let seat = Seat { member, since };
            lines.expect(view.lost.last().is_none_or(|last| *last < seat) && is_of(since))?;
            view.lost.push(seat);
        }
        while let Some((member, of)) = lines.of_member("given-up")? {
            let is_next = view.given_up.last().is_none_or(|last| last.member.node < member.node);
            lines.expect(is_next && is_of(of))?;
            view.given_up.push(GivenUp { member, view: of });
        }
        lines.end()?;
        match number == of {
            _ if view.seats.is_empty() => Err(TextError::Line(lines.line + 1)),
            true => Ok(view),
            false => Err(TextError::Other(GroupFile::View(number))),
        }
    }
}

/// Why a text is none of the group's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextError {
    /// Something else.
    Foreign,
    /// Of another version of Forebay, which writes this version of the form.
    Version(u32),
    /// Its checksum is missing or another: it is not all there, or was changed.
    Damaged,
    /// Its checksum is right, and what this line says cannot be.
    Line(usize),
    /// It belongs into another file.
    Other(GroupFile),
    /// An address that is empty, too long, or has other than visible characters of ASCII.
    Address,
    /// The same of a host's name.
    Host,
    /// The same of terms.
    Terms,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Foreign => write!(f, "no file of a group of Forebay"),
            Self::Version(version) => {
                write!(f, "its form has version {version}, and this program knows {VERSION}")
            }
            Self::Damaged => write!(f, "its checksum is missing or wrong: incomplete or changed"),
            Self::Line(line) => write!(f, "line {line} cannot be"),
            Self::Other(GroupFile::Member(member, _)) => {
                let Member { node, incarnation } = member;
                write!(f, "it is that of node {}, life {}", node.0, incarnation.0)
            }
            Self::Other(file) => write!(f, "it belongs into {file}"),
            Self::Address => {
                write!(f, "an address has 1 to {ADDRESS_MAX} visible characters of ASCII")
            }
            Self::Host => {
                write!(f, "a host's name has 1 to {HOST_MAX} visible characters of ASCII")
            }
            Self::Terms => write!(f, "terms have 1 to {TERMS_MAX} visible characters of ASCII"),
        }
    }
}

impl std::error::Error for TextError {}

/// A text with its first line and its checksum.
fn sealed(kind: &str, lines: &str) -> String {
    let mut text = format!("forebay {kind} {VERSION}\n{lines}");
    let sum = crc32c::crc32c(text.as_bytes());
    writeln!(text, "crc32c {sum:08x}").expect("a String takes all");
    text
}

/// The lines of a text between the first one and its checksum, which is right.
struct Lines<'t> {
    rest: &'t str,
    /// The number of the line that was read last, from 1.
    line: usize,
}

impl<'t> Lines<'t> {
    fn of(kind: &str, text: &'t [u8]) -> Result<Self, TextError> {
        let start = format!("forebay {kind} ");
        let Some(behind) = text.strip_prefix(start.as_bytes()) else {
            // A text that ends within these words was ours.
            let is_begun = start.as_bytes().starts_with(text);
            return Err(if is_begun { TextError::Damaged } else { TextError::Foreign });
        };
        let behind = std::str::from_utf8(behind).map_err(|_| TextError::Damaged)?;
        let (version, lines) = behind.split_once('\n').ok_or(TextError::Damaged)?;
        match number(version) {
            Some(VERSION) => {}
            Some(version) => return Err(TextError::Version(version)),
            None => return Err(TextError::Foreign),
        }
        let last = lines.strip_suffix('\n').ok_or(TextError::Damaged)?;
        let last = last.rfind('\n').map_or(0, |at| at + 1);
        let rest = &lines[..last];
        match sealed(kind, rest).as_bytes() == text {
            true => Ok(Self { rest, line: 1 }),
            false => Err(TextError::Damaged),
        }
    }

    /// What the next line has behind its first word, which is this one.
    fn words<const COUNT: usize>(&mut self, first: &str) -> Result<[&'t str; COUNT], TextError> {
        self.line += 1;
        let wrong = TextError::Line(self.line);
        let (line, rest) = self.rest.split_once('\n').ok_or(wrong.clone())?;
        self.rest = rest;
        let words: Vec<_> = line.split(' ').collect();
        match words.split_first() {
            Some((word, words)) if *word == first => words.try_into().map_err(|_| wrong),
            _ => Err(wrong),
        }
    }

    /// A number of the line that was read last.
    fn number<T: FromStr>(&self, word: &str) -> Result<T, TextError> {
        number(word).ok_or(TextError::Line(self.line))
    }

    /// What the next line says of a member, with the number of a view, if its first word is this.
    fn of_member(&mut self, first: &str) -> Result<Option<(Member, u32)>, TextError> {
        if self.rest.split([' ', '\n']).next() != Some(first) {
            return Ok(None);
        }
        let [node, incarnation, view] = self.words(first)?;
        let node = NodeId(self.number(node)?);
        let member = Member { node, incarnation: self.life(incarnation)? };
        Ok(Some((member, self.number(view)?)))
    }

    /// The line that was read last has to be right.
    fn expect(&self, is_right: bool) -> Result<(), TextError> {
        if is_right { Ok(()) } else { Err(TextError::Line(self.line)) }
    }

    fn life(&self, word: &str) -> Result<Incarnation, TextError> {
        self.number(word).map(Incarnation)
    }

    fn end(&self) -> Result<(), TextError> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(TextError::Line(self.line + 1)),
        }
    }
}

/// A number as `Display` writes it.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain && is_short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;
    use rand::RngExt;
    use rand::rngs::SmallRng;

    fn view(random: &mut SmallRng) -> View {
        let number = random.random_range(1..=u32::MAX);
        let mut seats = Vec::new();
        let mut node = random.random_range(0..100);
        for _ in 0..random.random_range(1..40) {
            let member = Member::new(node, random.random());
            let since = random.random_range(1..=number);
            seats.push(Seat { member, since });
            node += random.random_range(1..1000u16);
        }
        let some: Vec<Seat> = seats.iter().copied().filter(|_| random.random()).collect();
        let given_up = some.iter().map(|seat| GivenUp { member: seat.member, view: seat.since });
        View { number, seats, given_up: given_up.collect(), lost: some }
    }

    fn card(random: &mut SmallRng) -> Card {
        let mut text = |max| {
            let length = random.random_range(1..=max);
            (0..length).map(|_| char::from(random.random_range(b'!'..=b'~'))).collect::<String>()
        };
        let (address, host, terms) = (text(ADDRESS_MAX), text(HOST_MAX), text(TERMS_MAX));
        let card = Card::new(Member::new(random.random(), random.random()), &address, &host);
        let card = card.unwrap();
        if random.random() { card.with_terms(&terms).unwrap() } else { card }
    }

    fn small() -> View {
        let seats = [(0, 3, 1), (7, 1, 2)];
        let seats = seats
            .map(|(node, life, since)| Seat { member: Member::new(node, life), since })
            .to_vec();
        View { number: 2, seats, ..View::default() }
    }

    #[test]
    fn the_texts_are_those_that_other_versions_read() {
        let text = "forebay view 1\nview 2\nseat 0 3 1\nseat 7 1 2\ncrc32c 92145683\n";
        assert_eq!(small().to_text(), text);
        let lost = vec![Seat { member: Member::new(3, 1), since: 1 }];
        let given_up = vec![GivenUp { member: Member::new(5, 2), view: 2 }];
        let text = "\nseat 7 1 2\nlost 3 1 1\ngiven-up 5 2 2\ncrc32c ";
        assert!(View { lost, given_up, ..small() }.to_text().contains(text));
        let card = Card::new(Member::new(7, 1), "tls/10.0.0.8:21034", "n008").unwrap();
        let text = "forebay member 1\nmember 7 1\naddress tls/10.0.0.8:21034\nhost n008\n\
                    crc32c 26a50a4f\n";
        assert_eq!(card.to_text(), text);
        let card = card.with_terms("hosts/2.1f;consistency/auto").unwrap();
        assert!(card.to_text().contains("\nhost n008\nterms hosts/2.1f;consistency/auto\ncrc32c "));
    }

    #[test]
    fn what_is_written_is_read() {
        for seed in 0..1000 {
            let (mut random, _seed) = seed::of(seed);
            let (view, card) = (view(&mut random), card(&mut random));
            let read = View::of_text(view.number, view.to_text().as_bytes());
            assert_eq!(read.as_ref(), Ok(&view), "seed {seed}");
            let read = Card::of_text(card.member, card.to_text().as_bytes());
            assert_eq!(read.as_ref(), Ok(&card), "seed {seed}");
            let (node, number) = (NodeId(random.random()), random.random_range(1..=u32::MAX));
            for file in [
                GroupFile::View(number),
                GroupFile::Member(card.member, random.random()),
                GroupFile::Plea(number, node),
            ] {
                assert_eq!(GroupFile::of_name(&file.to_string()), Some(file), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_changed_byte_a_missing_end_and_more_behind_are_refused() {
        let is_refused = |view: &View, card: &Card, is_view: bool, text: &[u8]| match is_view {
            true => View::of_text(view.number, text).is_err(),
            false => Card::of_text(card.member, text).is_err(),
        };
        for seed in 0..10 {
            let (mut random, _seed) = seed::of(seed);
            let (view, card) = (view(&mut random), card(&mut random));
            for is_view in [true, false] {
                let text = if is_view { view.to_text() } else { card.to_text() }.into_bytes();
                for at in 0..text.len() {
                    assert!(is_refused(&view, &card, is_view, &text[..at]), "seed {seed}: {at}");
                    let mut changed = text.clone();
                    for flip in 1..=u8::MAX {
                        changed[at] = text[at] ^ flip;
                        let is_refused = is_refused(&view, &card, is_view, &changed);
                        assert!(is_refused, "seed {seed}: byte {at} ^ {flip}");
                    }
                }
                for more in ["\n", "\0", "x", "seat 1 1 1\n"] {
                    let longer = [&text, more.as_bytes()].concat();
                    assert!(is_refused(&view, &card, is_view, &longer), "seed {seed}: {more:?}");
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_an_error() {
        for seed in 0..20_000 {
            let (mut random, _seed) = seed::of(seed);
            let length = random.random_range(0..80);
            let bytes: Vec<u8> = (0..length).map(|_| random.random()).collect();
            for start in ["", "forebay view ", "forebay view 1\n", "forebay member 1\n"] {
                let text = [start.as_bytes(), &bytes].concat();
                assert!(View::of_text(1, &text).is_err(), "seed {seed}");
                assert!(Card::of_text(Member::new(1, 1), &text).is_err(), "seed {seed}");
            }
            // With the right sum, so that the lines themselves are read.
            const WORDS: [&str; 8] =
                ["seat", " ", "1", "\n", "view", "member 1 1\n", "address", ""];
            let lines: String = (0..12).map(|_| WORDS[random.random_range(0..8)]).collect();
            for (kind, lines) in [("view", format!("view 1\n{lines}\n")), ("member", lines)] {
                let text = sealed(kind, &lines);
                if let Ok(view) = View::of_text(1, text.as_bytes()) {
                    assert_eq!(view.to_text(), text, "seed {seed}");
                }
                if let Ok(card) = Card::of_text(Member::new(1, 1), text.as_bytes()) {
                    assert_eq!(card.to_text(), text, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let view = |lines| View::of_text(2, sealed("view", lines).as_bytes());
        let sealed_small = small().to_text();
        assert_eq!(view("view 2\nseat 0 3 1\nseat 7 1 2\n"), Ok(small()));
        assert_eq!(view("view 3\nseat 0 3 1\n"), Err(TextError::Other(GroupFile::View(3))));
        for (lines, line) in [
            ("", 2),
            ("seat 0 3 1\n", 2),
            ("view 02\nseat 0 3 1\n", 2),
            ("view 2 2\nseat 0 3 1\n", 2),
            ("view 2\n", 3),
            ("view 2\nseat 0 3 0\n", 3),
            ("view 2\nseat 0 3 3\n", 3),
            ("view 2\nseat 0 3\n", 3),
            ("view 2\nseat +0 3 1\n", 3),
            ("view 2\nseat 65536 3 1\n", 3),
            ("view 2\nseat 0 3 1\n\nseat 1 3 1\n", 4),
            ("view 2\nseat 1 3 1\nseat 1 3 1\n", 4),
            ("view 2\nseat 1 3 1\nseat 0 3 1\n", 4),
        ] {
            assert_eq!(view(lines), Err(TextError::Line(line)), "{lines:?}");
        }
        let of = |text: &str| View::of_text(2, text.as_bytes());
        assert_eq!(of(""), Err(TextError::Damaged));
        assert_eq!(of("forebay vi"), Err(TextError::Damaged));
        assert_eq!(of("#!/bin/sh\n"), Err(TextError::Foreign));
        assert_eq!(of(&sealed("member", "")), Err(TextError::Foreign));
        assert_eq!(of(&sealed_small.replace("view 1", "view 2")), Err(TextError::Version(2)));
        assert_eq!(of(&sealed_small.replace("seat 7", "seat 8")), Err(TextError::Damaged));

        let me = Member::new(7, 1);
        let card = |lines| Card::of_text(me, sealed("member", lines).as_bytes());
        assert!(card("member 7 1\naddress a\nhost h\n").is_ok());
        let other = TextError::Other(GroupFile::Member(Member::new(7, 2), 0));
        assert_eq!(card("member 7 2\naddress a\nhost h\n"), Err(other));
        assert_eq!(card("member 7 1\naddress \nhost h\n"), Err(TextError::Address));
        assert_eq!(card("member 7 1\naddress a\nhost \n"), Err(TextError::Host));
        assert_eq!(card("member 7 1\naddress a\n"), Err(TextError::Line(4)));
        let terms = card("member 7 1\naddress a\nhost h\nterms t\n");
        assert_eq!(terms.unwrap().terms(), "t");
        assert_eq!(card("member 7 1\naddress a\nhost h\nterms \n"), Err(TextError::Line(5)));
        let more = "member 7 1\naddress a\nhost h\nterms t\nterms t\n";
        assert_eq!(card(more), Err(TextError::Line(6)));
        assert_eq!(card("member 7 1\naddress a\nhost h\nhost h\n"), Err(TextError::Line(5)));
        let long = "a".repeat(513);
        assert_eq!(Card::new(me, &long, "h"), Err(TextError::Address));
        assert!(Card::new(me, &long[1..], "h").is_ok());
        assert_eq!(Card::new(me, "a\nhost b", "h"), Err(TextError::Address));
        assert_eq!(Card::new(me, "a", &long[..256]), Err(TextError::Host));
        let terms = |terms| Card::new(me, "a", "h").unwrap().with_terms(terms);
        assert_eq!(terms(&long[..256]), Err(TextError::Terms));
        assert_eq!(terms("a b"), Err(TextError::Terms));
    }

    #[test]
    fn names_of_other_files_are_not_taken_for_ours() {
        for name in [
            "",
            "secret",
            "view",
            "view.",
            "view.0",
            "view.01",
            "view.+1",
            "view.1.",
            "view.1.2",
            "view.4294967296",
            "View.1",
            "view.1~",
            ".view.1",
            "view 1",
            "member.1",
            "member.1.2",
            "member.1.2.3.4",
            "member.65536.1.1",
            "member.1.-2.3",
            "member.1.2.18446744073709551616",
            "left.1",
            "left.1.2.3",
            "left.65536.1",
            "left.1.02",
            "plea.1",
            "plea.0.1",
            "plea.1.65536",
            "plea.1.2.3",
            ".nfs000000",
            "view.\u{661}",
        ] {
            assert_eq!(GroupFile::of_name(name), None, "{name}");
        }
    }

    #[test]
    fn the_names_of_the_folder_say_who_looks_and_who_pleads() {
        let found = |names: &[&str]| {
            let names = names.iter().filter_map(|name| GroupFile::of_name(name));
            Found::of_folder(Some(small()), names)
        };
        let names = ["member.0.3.10", "member.7.1.20", "view.1", "view.2", "secret"];
        let before = found(&names);
        assert_eq!(before.newest, Some(Arc::new(small())));
        assert_eq!(before.pleas, []);
        // Each member's look is seen, also while a rename shows both names.
        for name in ["member.0.3.11", "member.7.1.21"] {
            assert_ne!(found(&[&names[..], &[name]].concat()).looks, before.looks, "{name}");
        }
        // Older names, other lives and other nodes change nothing.
        for name in ["member.0.3.9", "member.0.4.99", "member.7.0.5", "member.8.1.1"] {
            assert_eq!(found(&[&names[..], &[name]].concat()), before, "{name}");
        }
        let pleas = ["plea.2.7", "plea.2.0", "plea.2.7", "plea.1.0", "plea.3.0", "plea.2.9"];
        assert_eq!(found(&pleas).pleas, [NodeId(0), NodeId(7)]);
        let none = Found::of_folder(None, [GroupFile::Member(Member::new(1, 1), 5)]);
        assert_eq!(none, Found::default());
    }

    #[test]
    fn what_views_ask_for_becomes_files_and_a_look_again() {
        use crate::views::{Ask, Rank, Times, Views};
        let me = Member::new(3, 1);
        let mut views = Views::new(me, Times::default(), 0);
        // The folder: the content of each view, and the number of this node's looks.
        let (mut texts, mut looks) = (BTreeMap::<GroupFile, String>::new(), 0);
        for now_ms in 0..20_000 {
            match views.poll(now_ms) {
                Some(Ask::Look) => {
                    looks += 1;
                    let newest = texts.last_key_value().map(|(file, text)| {
                        let GroupFile::View(number) = file else { panic!("{file}") };
                        View::of_text(*number, text.as_bytes()).unwrap()
                    });
                    let names = [GroupFile::Member(me, looks)].into_iter();
                    let names = names.chain(texts.keys().copied());
                    views.looked(Some(Found::of_folder(newest, names)), now_ms);
                }
                Some(Ask::Propose(view)) => {
                    texts.insert(GroupFile::View(view.number), view.to_text());
                    views.proposed(true, now_ms);
                }
                Some(ask) => panic!("{ask:?}"),
                None => {}
            }
        }
        assert_eq!(views.rank(20_000), Rank::Inside);
        assert_eq!(views.seat(), Some(Seat { member: me, since: 1 }));
        assert_eq!(views.last_seen(20_000).map(|(_, found)| found.looks), Some(looks));
    }
}
