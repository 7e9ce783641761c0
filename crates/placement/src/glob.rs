//! Path patterns: `**`, `*`, `?`, `[a-z]`, `{a,b}`, matched without allocating, in time that is
//! bounded by the product of both lengths.
//!
//! A pattern is run as a nondeterministic automaton: one bit for each of its bytes says whether
//! what was read so far can end there. So no pattern, however hostile, backtracks.
//!
//! ```
//! use forebay_placement::glob::{check, matches};
//!
//! assert!(matches(b"**/*.{h5,nc}", b"/scratch/run7/out.h5"));
//! assert!(!matches(b"/scratch/*.h5", b"/scratch/run7/out.h5"));
//! assert!(check(b"data[0-9").is_err());
//! ```

/// Longest pattern in bytes: with its end an automaton of seven words, kept on the stack.
pub const PATTERN_MAX: usize = 447;
/// How deep `{a,{b,c}}` may nest.
const DEPTH_MAX: usize = 8;
/// One bit for each position, the end included.
const WORDS: usize = PATTERN_MAX / 64 + 1;

/// Whether `pattern` matches all of `text`.
///
/// | in the pattern | stands for |
/// |---|---|
/// | `*` | any characters of one name, also none |
/// | `**` | any characters, `/` included; as a whole name (`a/**/b`) also nothing at all |
/// | `?` | one character, not `/` |
/// | `[a-z_]`, `[!a-z]` | one character that is, or is not, among these; never `/` |
/// | `{a,b}` | either; may be nested |
/// | `\x` | `x` itself |
///
/// A pattern that [`check`] refuses matches as far as it makes sense, its odd parts standing for
/// themselves; one longer than [`PATTERN_MAX`] matches nothing. Text need not be UTF-8: a byte that
/// is not counts as one character.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    if pattern.len() > PATTERN_MAX || !ends_agree(pattern, text) {
        return false;
    }
    match pattern.len() {
        // Most patterns are this short, and then a set of positions is a register.
        0..64 => run::<1>(pattern, text),
        _ => run::<WORDS>(pattern, text),
    }
}

fn run<const W: usize>(pattern: &[u8], text: &[u8]) -> bool {
    let shape = Shape::<W>::of(pattern);
    let mut now = Positions::<W>::EMPTY;
    now.add(0);
    let mut at = 0;
    while at < text.len() {
        let (character, length) = character(text, at);
        let next = step(pattern, &shape, now, starts_name(text, at), Some(character)).1;
        if next.is_empty() {
            return false;
        }
        now = next;
        at += length;
    }
    step(pattern, &shape, now, starts_name(text, at), None).0.has(pattern.len())
}

/// Whether the text begins and ends as the pattern does up to its first, and from its last, special
/// character: most texts are told apart by that alone.
fn ends_agree(pattern: &[u8], text: &[u8]) -> bool {
    let last = pattern.iter().rposition(|byte| b"*?[]{},\\".contains(byte));
    let suffix = &pattern[last.map_or(0, |last| last + 1)..];
    // The slash of `**/` may stand for nothing.
    let suffix = suffix.strip_prefix(b"/").filter(|_| last.is_some()).unwrap_or(suffix);
    text.starts_with(literal_prefix(pattern)) && text.ends_with(suffix)
}

/// Whether a name of the path begins at `at`.
fn starts_name(text: &[u8], at: usize) -> bool {
    at == 0 || text[at - 1] == b'/'
}

/// Says what is wrong with a pattern, or nothing.
///
/// # Errors
/// A phrase such as `"'[' is not closed"`.
pub fn check(pattern: &[u8]) -> Result<(), &'static str> {
    if pattern.is_empty() {
        return Err("it is empty");
    }
    if pattern.len() > PATTERN_MAX {
        return Err("it is longer than 447 bytes");
    }
    if pattern.contains(&0) {
        return Err("it contains a zero byte");
    }
    let (mut at, mut depth) = (0, 0_usize);
    while at < pattern.len() {
        match pattern[at] {
            b'\\' if at + 1 == pattern.len() => return Err("it ends with '\\'"),
            b'[' => match Class::at(pattern, at) {
                Some(class) if class.is_ordered() => {}
                Some(_) => return Err("a range in '[]' runs backwards"),
                None => return Err("'[' is not closed"),
            },
            b'{' if depth == DEPTH_MAX => return Err("'{' is nested more than 8 deep"),
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1).ok_or("'}' closes nothing")?,
            _ => {}
        }
        at = token_end(pattern, at);
    }
    if depth == 0 { Ok(()) } else { Err("'{' is not closed") }
}

/// The part of a pattern before its first wildcard, for finding out where its files lie.
pub fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[{\\".contains(byte));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Follows what needs no character, and reads `character` if there is one; `at_name` says whether a
/// name of the path begins here. Returns the positions before and after the character.
fn step<const W: usize>(
    pattern: &[u8],
    shape: &Shape<W>,
    mut now: Positions<W>,
    at_name: bool,
    character: Option<u32>,
) -> (Positions<W>, Positions<W>) {
    let mut next = Positions::EMPTY;
    let mut from = 0;
    // Whatever needs no character leads on to later positions, so one pass follows all.
    while let Some(at) = now.first_from(from) {
        from = at + 1;
        let Some(&byte) = pattern.get(at) else { continue };
        let in_name = character.is_some_and(|character| character != u32::from(b'/'));
        match byte {
            b'*' if pattern.get(at + 1) == Some(&b'*') => {
                now.add(at + 2);
                let whole = shape.name_starts.has(at) && pattern.get(at + 2) == Some(&b'/');
                if whole && at_name {
                    now.add(at + 3);
                }
                if character.is_some() {
                    next.add(at);
                }
            }
            b'*' => {
                now.add(at + 1);
                if in_name {
                    next.add(at);
                }
            }
            b'?' if in_name => next.add(at + 1),
            b'?' => {}
            b'{' if shape.next[at] > 0 => {
                now.add(at + 1);
                let mut separator = usize::from(shape.next[at]);
                while pattern[separator] == b',' {
                    now.add(separator + 1);
                    separator = usize::from(shape.next[separator]);
                }
            }
            // The end of an alternative.
            b',' if shape.next[at] > 0 => {
                let mut separator = usize::from(shape.next[at]);
                while pattern[separator] == b',' {
                    separator = usize::from(shape.next[separator]);
                }
                now.add(separator + 1);
            }
            b'}' if shape.next[at] > 0 => now.add(at + 1),
            _ => match Class::at(pattern, at) {
                Some(class) => {
                    if in_name && character.is_some_and(|character| class.has(character)) {
                        next.add(class.end);
                    }
                }
                None => {
                    let (literal, end) = literal(pattern, at);
                    if character == Some(literal) {
                        next.add(end);
                    }
                }
            },
        }
    }
    (now, next)
}

/// The character at `at`, its escape removed, and where the next begins.
fn literal(pattern: &[u8], at: usize) -> (u32, usize) {
    let at = if pattern[at] == b'\\' && at + 1 < pattern.len() { at + 1 } else { at };
    let (character, length) = character(pattern, at);
    (character, at + length)
}

/// Where the token that begins at `at` ends.
fn token_end(pattern: &[u8], at: usize) -> usize {
    Class::at(pattern, at).map_or_else(|| literal(pattern, at).1, |class| class.end)
}

/// The character at `at` and its bytes. A byte that is not UTF-8 is a character of its own, beyond
/// all others.
fn character(text: &[u8], at: usize) -> (u32, usize) {
    let first = text[at];
    let length = match first {
        0..=0x7f => return (u32::from(first), 1),
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    let decoded = text.get(at..at + length).and_then(|bytes| core::str::from_utf8(bytes).ok());
    match decoded.and_then(|decoded| decoded.chars().next()) {
        Some(character) => (character.into(), length),
        None => (0x11_0000 + u32::from(first), 1),
    }
}

/// How the braces of a pattern belong together.
struct Shape<const W: usize> {
    /// Of `{` and of `,` in braces: the `,` or `}` that ends this alternative. Of a `}` that closes
    /// braces: itself. 0 elsewhere.
    next: [u16; PATTERN_MAX],
    /// Where a name of the path can begin.
    name_starts: Positions<W>,
}

impl<const W: usize> Shape<W> {
    fn of(pattern: &[u8]) -> Self {
        let mut shape = Shape { next: [0; PATTERN_MAX], name_starts: Positions::EMPTY };
        shape.name_starts.add(0);
        // Open braces: where they are, and where their current alternative began.
        let mut open = [(0_usize, 0_usize); DEPTH_MAX];
        let (mut depth, mut at) = (0, 0);
        while at < pattern.len() {
            match pattern[at] {
                b'/' => shape.name_starts.add(at + 1),
                b'{' if depth < DEPTH_MAX => {
                    open[depth] = (at, at);
                    depth += 1;
                }
                b',' if depth > 0 => {
                    shape.next[open[depth - 1].1] = at as u16;
                    open[depth - 1].1 = at;
                }
                b'}' if depth > 0 => {
                    depth -= 1;
                    shape.next[open[depth].1] = at as u16;
                    shape.next[at] = at as u16;
                }
                _ => {}
            }
            if depth > 0 && matches!(pattern[at], b'{' | b',') {
                let brace = open[depth - 1].0;
                if shape.name_starts.has(brace) {
                    shape.name_starts.add(at + 1);
                }
            }
            at = token_end(pattern, at);
        }
        // Braces that are not closed stand for themselves.
        for &(brace, _) in &open[..depth] {
            let mut at = brace;
            while shape.next[at] > 0 {
                at = usize::from(core::mem::take(&mut shape.next[at]));
            }
        }
        shape
    }
}

/// A set of characters: `[a-z_]`.
struct Class<'p> {
    members: &'p [u8],
    negated: bool,
    /// The position after `]`.
    end: usize,
}

impl<'p> Class<'p> {
    /// The class that begins at `at`. A `]` right at its start is a member.
    fn at(pattern: &'p [u8], at: usize) -> Option<Class<'p>> {
        if pattern[at] != b'[' {
            return None;
        }
        let negated = matches!(pattern.get(at + 1), Some(b'!' | b'^'));
        let start = at + 1 + usize::from(negated);
        let rest = pattern.get(start + 1..)?;
        let close = start + 1 + rest.iter().position(|&byte| byte == b']')?;
        Some(Class { members: &pattern[start..close], negated, end: close + 1 })
    }

    /// First and last character of each range.
    fn ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        let (members, mut at) = (self.members, 0);
        core::iter::from_fn(move || {
            if at >= members.len() {
                return None;
            }
            let (first, length) = character(members, at);
            at += length;
            if members.get(at) == Some(&b'-') && at + 1 < members.len() {
                let (last, length) = character(members, at + 1);
                at += 1 + length;
                return Some((first, last));
            }
            Some((first, first))
        })
    }

    fn has(&self, character: u32) -> bool {
        self.ranges().any(|(first, last)| (first..=last).contains(&character)) != self.negated
    }

    fn is_ordered(&self) -> bool {
        self.ranges().all(|(first, last)| first <= last)
    }
}

/// A set of positions in a pattern.
#[derive(Clone, Copy)]
struct Positions<const W: usize>([u64; W]);

impl<const W: usize> Positions<W> {
    const EMPTY: Self = Self([0; W]);

    fn add(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 != 0
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; W]
    }

    /// The first position of the set that is not before `from`.
    fn first_from(&self, from: usize) -> Option<usize> {
        let first = from / 64;
        let mask = u64::MAX << (from % 64);
        (first..W).find_map(|word| {
            let bits = self.0[word] & if word == first { mask } else { u64::MAX };
            (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_matches(pattern: &str, yes: &[&str], no: &[&str]) {
        assert_eq!(check(pattern.as_bytes()), Ok(()), "{pattern}");
        for text in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for text in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn stars_and_names() {
        assert_matches("*.h5", &["a.h5", ".h5", "é.h5"], &["d/a.h5", "a.h5x", "h5", ""]);
        assert_matches("a/*/b", &["a/x/b", "a//b"], &["a/b", "a/x/y/b"]);
        assert_matches("**/*.h5", &["a.h5", "d/a.h5", "d/e/a.h5"], &["a.h", "d/ah5"]);
        assert_matches("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["a/xb", "ab", "a/x", "xa/b"]);
        assert_matches("run/**", &["run/a", "run/a/b", "run/"], &["run", "rune/a"]);
        assert_matches("**", &["", "a", "a/b", "/"], &[]);
        assert_matches("x**/a", &["x/a", "xy/z/a"], &["xa", "y/a"]);
        assert_matches(
            "/lustre/*/out-??.dat",
            &["/lustre/me/out-01.dat"],
            &["/lustre/me/out-1.dat"],
        );
        assert_matches("?", &["a", "é", "字"], &["", "/", "ab"]);
        assert_matches("***", &["", "a/b"], &[]);
    }

    #[test]
    fn classes() {
        assert_matches("[a-c]x", &["ax", "cx"], &["dx", "x", "-x"]);
        assert_matches("[!a-c]", &["d", "é"], &["a", "/", ""]);
        assert_matches("[^/]", &["a"], &["/"]);
        assert_matches("[]-]", &["]", "-"], &["a"]);
        assert_matches("[α-ω]", &["λ"], &["a", "Ω"]);
        assert_matches("[,{}]{[,],b}", &[",,", "{b", "}b"], &["ab", ",{"]);
    }

    #[test]
    fn alternatives() {
        assert_matches("*.{h5,nc}", &["a.h5", "a.nc"], &["a.", "a.h5,nc", "a.txt"]);
        assert_matches("{a,b{c,d}}e", &["ae", "bce", "bde"], &["be", "abce", "e"]);
        assert_matches("{,x}a", &["a", "xa"], &["xxa"]);
        assert_matches("{**/*.h5,log}", &["a.h5", "d/a.h5", "log"], &["d/log"]);
        assert_matches("d/{**/a,b}", &["d/a", "d/x/a", "d/b"], &["d/xa"]);
        assert_matches("d/x{**/a}", &["d/x/a"], &["d/xa"]);
        assert_matches("a,b", &["a,b"], &["a", "b"]);
        assert_matches("{a}{b,c}", &["ab", "ac"], &["a", "{a}b"]);
    }

    #[test]
    fn escapes_stand_for_themselves() {
        assert_matches(r"\*\{a\,b\}", &["*{a,b}"], &["x{a,b}", "a"]);
        assert_matches(r"{a\,b,c}", &["a,b", "c"], &["a", "b"]);
        assert_matches(r"\é", &["é"], &["e"]);
    }

    #[test]
    fn bytes_that_are_not_text_are_characters() {
        assert!(matches(b"?a", b"\xffa") && matches(b"*", b"\xff\xfe\xe2\x82"));
        assert!(!matches(b"?", b"\xff\xfe") && !matches("é".as_bytes(), b"\xc3"));
        assert!(matches(b"[!a]", b"\xff") && !matches("[\u{0}-\u{10ffff}]".as_bytes(), b"\xff"));
    }

    #[test]
    fn says_what_is_wrong() {
        let long = "x".repeat(PATTERN_MAX + 1);
        let deep = "{".repeat(9);
        for (pattern, problem) in [
            ("", "it is empty"),
            ("a\\", "it ends with '\\'"),
            ("[a", "'[' is not closed"),
            ("[", "'[' is not closed"),
            ("[]", "'[' is not closed"),
            ("[z-a]", "a range in '[]' runs backwards"),
            ("{a,b", "'{' is not closed"),
            ("a}", "'}' closes nothing"),
            ("a\0", "it contains a zero byte"),
            (&deep, "'{' is nested more than 8 deep"),
            (&long, "it is longer than 447 bytes"),
        ] {
            assert_eq!(check(pattern.as_bytes()), Err(problem), "{pattern}");
        }
        assert!(!matches(long.as_bytes(), long.as_bytes()));
    }

    #[test]
    fn the_longest_pattern_is_no_trouble() {
        let stars = "*a".repeat(PATTERN_MAX / 2);
        let text = "a".repeat(4096);
        assert!(matches(stars.as_bytes(), text.as_bytes()));
        assert!(!matches(stars.as_bytes(), (text + "b").as_bytes()));
        let exact = "x".repeat(PATTERN_MAX);
        assert!(matches(exact.as_bytes(), exact.as_bytes()));
    }

    #[test]
    fn prefixes_end_at_the_first_wildcard() {
        assert_eq!(literal_prefix(b"/a/b*"), b"/a/b");
        assert_eq!(literal_prefix(b"/a/b"), b"/a/b");
        assert_eq!(literal_prefix(b"{a,b}"), b"");
    }

    /// The same by trying everything, for valid patterns of small ASCII texts.
    fn by_trying(pattern: &[u8], text: &[u8], name_start: bool) -> bool {
        let Some((&first, rest)) = pattern.split_first() else { return text.is_empty() };
        let one = |ok: bool| ok && by_trying(rest, &text[1..], text[0] == b'/');
        match first {
            b'*' if rest.first() == Some(&b'*') => {
                let skips =
                    name_start && rest.get(1) == Some(&b'/') && by_trying(&rest[2..], text, true);
                skips || (0..=text.len()).any(|n| by_trying(&rest[1..], &text[n..], false))
            }
            b'*' => (0..=text.len())
                .take_while(|&n| !text[..n].contains(&b'/'))
                .any(|n| by_trying(rest, &text[n..], false)),
            b'?' => one(text.first().is_some_and(|&byte| byte != b'/')),
            _ => one(text.first() == Some(&first)),
        }
    }

    /// Every pattern of up to five of these characters against every text of up to four.
    #[test]
    fn agrees_with_trying_everything() {
        let all = |alphabet: &[u8], longest: usize| {
            let mut words = vec![Vec::new()];
            let mut last = words.clone();
            for _ in 0..longest {
                last = last
                    .iter()
                    .flat_map(|word: &Vec<u8>| {
                        alphabet.iter().map(|&byte| [word.as_slice(), &[byte]].concat())
                    })
                    .collect();
                words.extend(last.clone());
            }
            words
        };
        let texts = all(b"a/", 4);
        for pattern in all(b"a/*?", 5) {
            for text in &texts {
                let expected = by_trying(&pattern, text, true);
                let shown = || String::from_utf8_lossy(&pattern).into_owned();
                assert_eq!(matches(&pattern, text), expected, "{} {text:?}", shown());
            }
        }
    }

    /// Nonsense neither panics nor hangs.
    #[test]
    fn survives_every_short_pattern() {
        let alphabet = b"a{},[]!-\\*?/";
        let count = alphabet.len();
        for code in 0..count.pow(5) {
            let pattern: Vec<u8> = (0..5).map(|n| alphabet[code / count.pow(n) % count]).collect();
            let found = matches(&pattern, b"a/a");
            assert!(!found || !pattern.is_empty());
            let _ = check(&pattern);
        }
    }
}
