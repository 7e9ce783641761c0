//! Lists of hosts, as users and batch systems write them: which nodes a group may have, and which
//! number each has in it.

use crate::node::NodeId;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// No list is longer: each number fits a [`NodeId`].
const HOSTS_MAX: usize = 65_535;
/// The longest name of a host, in bytes.
const NAME_MAX: usize = 255;
/// More digits than a number of a range may have.
const DIGITS_MAX: usize = 18;

/// The hosts of a group, each once. The place of a host in the list, from 0, is its [`NodeId`], so
/// all nodes of a group need the same list in the same order.
///
/// A name has letters, digits, `-`, `_` and `.`, and at most 255 bytes; large and small letters
/// differ. A list has 1 to 65,535 names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostList {
    names: Vec<String>,
}

/// A list that the environment of a process names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The variable that has it.
    pub variable: &'static str,
    /// What it says.
    pub hosts: AnnouncedHosts,
    /// The place of this process's node, if the batch system says which it is; otherwise
    /// [`HostList::position_of`] the node's name.
    pub own: Option<NodeId>,
}

/// What a variable of the environment says of a job's hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnouncedHosts {
    /// All of them.
    List(HostList),
    /// The path of a file that [`HostList::of_file`] understands.
    File(String),
}

/// Why a text is no list of hosts, or a host is not in a list: where, what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostsError {
    /// The variable of the environment that it came from, if it did.
    pub variable: Option<&'static str>,
    /// The line of a host file, from 1.
    pub line: Option<usize>,
    /// The byte of the line, or of an expression, from 1.
    pub column: Option<usize>,
    /// What is wrong, and the remedy.
    pub why: String,
}

impl fmt::Display for HostsError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let places = [("line", self.line), ("column", self.column)];
        let places = places.into_iter().filter_map(|(what, at)| Some(format!("{what} {}", at?)));
        let all: Vec<_> = self.variable.map(str::to_owned).into_iter().chain(places).collect();
        match all.is_empty() {
            true => write!(f, "{}", self.why),
            false => write!(f, "{}: {}", all.join(", "), self.why),
        }
    }
}

impl std::error::Error for HostsError {}

impl HostsError {
    fn new(why: impl Into<String>) -> Self {
        Self { variable: None, line: None, column: None, why: why.into() }
    }

    /// At this byte from 0.
    fn at(offset: usize, why: impl Into<String>) -> Self {
        Self { column: Some(offset + 1), ..Self::new(why) }
    }

    fn in_variable(self, variable: &'static str) -> Self {
        Self { variable: Some(variable), ..self }
    }
}

impl HostList {
    /// Of an expression: of the command line (`a,b,c`), of `SLURM_JOB_NODELIST` or of
    /// `SLURM_STEP_NODELIST` (`n[1-3,7],rack[01-02]n[001-003]-ib`).
    ///
    /// Names are separated by commas, with or without blanks around them. Brackets hold numbers
    /// and ranges, separated by commas; a range that begins with zeros is padded to the width of
    /// its first number. A name may have several brackets, of which the last changes fastest, and
    /// text around each.
    ///
    /// # Errors
    /// What is no expression, a name that is there twice, and more than 65,535 hosts, which are
    /// counted and not made.
    pub fn of_expression(text: &str) -> Result<Self, HostsError> {
        let mut list = Building::default();
        for (offset, name) in split(text) {
            expand(offset, name, HOSTS_MAX - list.names.len(), &mut |host| {
                let Some(before) = list.add(&host) else { return Ok(()) };
                let why = format!("{host} is host {} already: name each once", before + 1);
                Err(HostsError::at(offset, why))
            })?;
        }
        list.finish()
    }

    /// Of the text of a host file: as of `mpirun --hostfile`, `srun --nodefile`, and those that
    /// `PBS_NODEFILE` and `LSB_DJOB_HOSTFILE` name.
    ///
    /// Each line has an [expression](Self::of_expression), mostly one name. `#` begins a comment;
    /// empty lines count for nothing. How many processes a host takes is read and ignored, as each
    /// host has one node manager: `host:4` (MPICH), `host 4` (LSF), and words with `=` behind the
    /// name (Open MPI's `slots=4 max-slots=8`, MPICH's `binding=user:0`).
    ///
    /// A host that is there again is the same one, wherever it is: PBS and LSF list it once for
    /// each core, Open MPI and MPICH add its lines up, and Slurm ignores the later ones. Its place
    /// is that of the first.
    ///
    /// # Errors
    /// A line that is neither, an empty list, and more than 65,535 hosts.
    pub fn of_file(text: &str) -> Result<Self, HostsError> {
        let mut list = Building::default();
        for (index, line) in text.lines().enumerate() {
            let in_line = |error: HostsError| HostsError { line: Some(index + 1), ..error };
            list.add_line(line).map_err(in_line)?;
        }
        list.finish()
    }

    /// Of the environment of a process in a batch job: `lookup` has the value of a variable.
    /// `None` if there is no such job. The first of these counts that is there and not empty:
    ///
    /// - Slurm, where `SLURM_JOB_ID` is there, too: `SLURM_STEP_NODELIST`, else
    ///   `SLURM_JOB_NODELIST`. The node's own place is `SLURM_NODEID`, which is checked with
    ///   `SLURMD_NODENAME` where that is there. So the nodes of each step have their own numbers;
    /// - PBS and Torque: `PBS_NODEFILE`, the path of a file, which the caller reads;
    /// - LSF: `LSB_MCPU_HOSTS` (`a 4 b 4`), else `LSB_HOSTS` (`a a a a b b b b`), which is meant
    ///   for small jobs.
    ///
    /// # Errors
    /// A variable that cannot be understood, and those of Slurm that contradict each other.
    pub fn of_environment(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Announced>, HostsError> {
        let value_of = |variable| {
            let value: String = lookup(variable)?;
            (!value.trim().is_empty()).then(|| (variable, value.trim().to_owned()))
        };
        let slurm = value_of("SLURM_JOB_ID").and_then(|_| {
            value_of("SLURM_STEP_NODELIST").or_else(|| value_of("SLURM_JOB_NODELIST"))
        });
        if let Some((variable, text)) = slurm {
            let list = Self::of_expression(&text).map_err(|error| error.in_variable(variable))?;
            let number = value_of("SLURM_NODEID").map(|(_, number)| number);
            let name = value_of("SLURMD_NODENAME").map(|(_, name)| name);
            let own = number.map(|number| list.own_in_slurm(&number, name.as_deref(), variable));
            let own = own.transpose().map_err(|error| error.in_variable("SLURM_NODEID"))?;
            return Ok(Some(Announced { variable, hosts: AnnouncedHosts::List(list), own }));
        }
        if let Some((variable, path)) = value_of("PBS_NODEFILE") {
            return Ok(Some(Announced { variable, hosts: AnnouncedHosts::File(path), own: None }));
        }
        let lsf = value_of("LSB_MCPU_HOSTS").map(|found| (found, true));
        let Some(((variable, text), has_counts)) =
            lsf.or_else(|| value_of("LSB_HOSTS").map(|found| (found, false)))
        else {
            return Ok(None);
        };
        let list = of_words(&text, has_counts).map_err(|error| error.in_variable(variable))?;
        Ok(Some(Announced { variable, hosts: AnnouncedHosts::List(list), own: None }))
    }

    /// A number that lists with other names, or another order, have too only by chance.
    pub fn sum(&self) -> u32 {
        let ended = |sum, name: &String| crc32c::crc32c_append(sum, format!("{name}\n").as_bytes());
        self.names.iter().fold(0, ended)
    }

    /// The names, by ascending [`NodeId`].
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name of a node. `None` if the list has not so many.
    pub fn name_of(&self, node: NodeId) -> Option<&str> {
        self.names.get(usize::from(node.0)).map(String::as_str)
    }

    /// The number of the node that has this name: the host that is named so, else the only one
    /// whose name is the same up to its first dot.
    ///
    /// # Errors
    /// None is, or several are.
    pub fn position_of(&self, hostname: &str) -> Result<NodeId, HostsError> {
        if let Some(place) = self.names.iter().position(|name| name == hostname) {
            return Ok(NodeId(place as u16));
        }
        let found: Vec<_> = (0..)
            .zip(&self.names)
            .filter(|(_, name)| short(name) == short(hostname))
            .map(|(place, _)| NodeId(place))
            .collect();
        match found[..] {
            [place] => Ok(place),
            [] => Err(HostsError::new(format!(
                "this host is {hostname}, which is not among the hosts of the group ({self}): \
                 name it there as it names itself"
            ))),
            [first, second, ..] => Err(HostsError::new(format!(
                "this host is {hostname}, which may be {} or {} of the hosts of the group \
                 ({self}): name it there as it names itself",
                self.names[usize::from(first.0)],
                self.names[usize::from(second.0)]
            ))),
        }
    }

    /// The number of the node that this host is: by its name, as of [`HostList::position_of`], or
    /// as the one whose name is an address that it `has`.
    ///
    /// # Errors
    /// None is, or several are.
    pub fn position_here(
        &self,
        hostname: &str,
        has: impl Fn(IpAddr) -> bool,
    ) -> Result<NodeId, HostsError> {
        let by_name = self.position_of(hostname);
        let is_own = |name: &str| {
            let address = name.parse::<IpAddr>().ok().filter(|address| !address.is_unspecified());
            address.is_some_and(&has)
        };
        let addresses = (0..).zip(&self.names).filter(|(_, name)| is_own(name));
        let addresses = addresses.map(|(place, _)| NodeId(place));
        let mut found: Vec<_> = by_name.iter().copied().chain(addresses).collect();
        found.dedup();
        match found[..] {
            [place] => Ok(place),
            [first, second, ..] => Err(HostsError::new(format!(
                "this host is {hostname}, and both {} and {} of the hosts of the group ({self}): \
                 name each once",
                self.names[usize::from(first.0)],
                self.names[usize::from(second.0)]
            ))),
            [] => by_name,
        }
    }

    /// What `SLURM_NODEID` says, if `SLURMD_NODENAME` does not say otherwise.
    fn own_in_slurm(
        &self,
        number: &str,
        name: Option<&str>,
        variable: &str,
    ) -> Result<NodeId, HostsError> {
        let own = number.parse().ok().map(NodeId);
        let Some((own, host)) = own.and_then(|own| Some((own, self.name_of(own)?))) else {
            return Err(HostsError::new(format!(
                "{number} is no place among the {} hosts of {variable} ({self}): start the \
                 program with srun, or give the hosts by --hosts",
                self.names.len()
            )));
        };
        match name {
            Some(name) if self.position_of(name)? != own => Err(HostsError::new(format!(
                "{number} is {host} in {variable} ({self}), and SLURMD_NODENAME is {name}: give \
                 the hosts by --hosts"
            ))),
            _ => Ok(own),
        }
    }
}

impl fmt::Display for HostList {
    /// The first names, and how many there are.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const SHOWN: usize = 8;
        let shown = &self.names[..self.names.len().min(SHOWN)];
        write!(f, "{}", shown.join(","))?;
        match self.names.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A list that grows, and the place of each of its names.
#[derive(Default)]
struct Building {
    names: Vec<String>,
    places: HashMap<String, usize>,
}

impl Building {
    /// Adds a host; if it is there already, its place is returned.
    fn add(&mut self, name: &str) -> Option<usize> {
        if let Some(place) = self.places.get(name) {
            return Some(*place);
        }
        self.places.insert(name.to_owned(), self.names.len());
        self.names.push(name.to_owned());
        None
    }

    /// Adds what a line of a host file names.
    fn add_line(&mut self, line: &str) -> Result<(), HostsError> {
        let line = line.split_once('#').map_or(line, |(before, _)| before);
        let mut words = words(line);
        let Some((start, first)) = words.next() else { return Ok(()) };
        for (offset, word) in words {
            let is_count = word.bytes().all(|byte| byte.is_ascii_digit());
            let is_option = word.find('=').is_some_and(|at| at > 0);
            if !is_count && !is_option {
                let why = format!(
                    "{word:?} behind a host: a line has one name, and a count or options with ="
                );
                return Err(HostsError::at(offset, why));
            }
        }
        for (offset, part) in split(first) {
            let offset = start + offset;
            let name = match part.split_once(':') {
                Some((name, count))
                    if !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()) =>
                {
                    name
                }
                Some((name, _)) => {
                    let why = "behind : is how many processes the host takes: a number";
                    return Err(HostsError::at(offset + name.len(), why));
                }
                None => part,
            };
            // What is there already counts for nothing, so that the list itself says how much
            // room there is.
            expand(offset, name, HOSTS_MAX, &mut |host| {
                self.add(&host);
                match self.names.len() <= HOSTS_MAX {
                    true => Ok(()),
                    false => Err(too_many(offset)),
                }
            })?;
        }
        Ok(())
    }

    fn finish(self) -> Result<HostList, HostsError> {
        match self.names.is_empty() {
            true => Err(HostsError::new("there is no host in the list: name one at least")),
            false => Ok(HostList { names: self.names }),
        }
    }
}

/// Of LSF's variables: names, or names each with a count behind it.
fn of_words(text: &str, has_counts: bool) -> Result<HostList, HostsError> {
    let mut list = Building::default();
    let mut words = words(text);
    while let Some((offset, name)) = words.next() {
        check_name(offset, name)?;
        list.add(name);
        if list.names.len() > HOSTS_MAX {
            return Err(too_many(offset));
        }
        let is_count = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
        if has_counts && !words.next().is_some_and(|(_, word)| is_count(word)) {
            let why = format!(
                "behind {name} there is no number of processors: give the hosts by --hosts"
            );
            return Err(HostsError::at(offset, why));
        }
    }
    list.finish()
}

fn short(name: &str) -> &str {
    name.split_once('.').map_or(name, |(short, _)| short)
}

fn too_many(offset: usize) -> HostsError {
    HostsError::at(offset, format!("more than {HOSTS_MAX} hosts: name fewer"))
}

/// The words of a text between blanks, each with its offset.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let offset_of = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    text.split_ascii_whitespace().map(move |word| (offset_of(word), word))
}

/// The parts of an expression between commas that are in no brackets, without blanks around them,
/// each with its offset. A text of blanks has none.
fn split(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_in_brackets = false;
    let mut start = 0;
    let parts = text.split(move |char| {
        match char {
            '[' => is_in_brackets = true,
            ']' => is_in_brackets = false,
            _ => {}
        }
        char == ',' && !is_in_brackets
    });
    let parts = parts.map(move |part| {
        let offset = start + part.len() - part.trim_start().len();
        start += part.len() + 1;
        (offset, part.trim())
    });
    parts.filter(|_| !text.trim().is_empty())
}

/// A part of a name in an expression.
enum Piece<'t> {
    Text(&'t str),
    /// Each with its first and last number, and how wide numbers are at least.
    Ranges(Vec<(u64, u64, usize)>),
}

/// Calls `each` with every host of a part of an expression, if they are `room` at most.
fn expand(
    offset: usize,
    text: &str,
    room: usize,
    each: &mut dyn FnMut(String) -> Result<(), HostsError>,
) -> Result<(), HostsError> {
    if text.is_empty() {
        let why = "a name is missing: there is one before and behind each comma";
        return Err(HostsError::at(offset, why));
    }
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let at = offset + text.len() - rest.len();
        let (before, behind) = match rest.split_once('[') {
            Some((before, behind)) => (before, Some(behind)),
            None => (rest, None),
        };
        if let Some(index) = before.find(|char| !is_in_names(char)) {
            return Err(odd(at + index, &before[index..]));
        }
        pieces.push(Piece::Text(before));
        rest = "";
        if let Some(behind) = behind {
            let open = at + before.len();
            let Some((inside, behind)) = behind.split_once(']') else {
                return Err(HostsError::at(open, "[ is not closed: end the ranges with ]"));
            };
            pieces.push(Piece::Ranges(ranges(open + 1, inside)?));
            rest = behind;
        }
    }
    // Counted before anything is made.
    let (mut count, mut bytes) = (1u64, 0);
    for piece in &pieces {
        match piece {
            Piece::Text(text) => bytes += text.len(),
            Piece::Ranges(ranges) => {
                let width = |(_, last, width): &(u64, u64, usize)| digits(*last).max(*width);
                bytes += ranges.iter().map(width).max().unwrap_or(0);
                let sizes = ranges.iter().map(|(first, last, _)| last - first + 1);
                count = count.saturating_mul(sizes.fold(0, u64::saturating_add));
            }
        }
    }
    if bytes > NAME_MAX {
        return Err(long(offset));
    }
    if count > room as u64 {
        return Err(too_many(offset));
    }
    make(&pieces, &mut String::new(), each)
}

/// Makes all names that begin with `begun`; the last brackets change fastest.
fn make(
    pieces: &[Piece],
    begun: &mut String,
    each: &mut dyn FnMut(String) -> Result<(), HostsError>,
) -> Result<(), HostsError> {
    let Some((first, rest)) = pieces.split_first() else { return each(begun.clone()) };
    let length = begun.len();
    match first {
        Piece::Text(text) => {
            begun.push_str(text);
            make(rest, begun, each)?;
            begun.truncate(length);
        }
        Piece::Ranges(ranges) => {
            for (first, last, width) in ranges {
                for number in *first..=*last {
                    begun.push_str(&format!("{number:0width$}"));
                    make(rest, begun, each)?;
                    begun.truncate(length);
                }
            }
        }
    }
    Ok(())
}

/// What brackets hold.
fn ranges(offset: usize, text: &str) -> Result<Vec<(u64, u64, usize)>, HostsError> {
    let mut all = Vec::new();
    let mut at = offset;
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u64>().ok().filter(|_| is_number && digits.len() <= DIGITS_MAX)
        };
        let (Some(low), Some(high)) = (number(first), number(last)) else {
            let why = format!("{range:?} is no number and no range: brackets are as in n[1-3,7]");
            return Err(HostsError::at(at, why));
        };
        if high < low {
            let why = format!("the range {range} goes down: begin with the smaller number");
            return Err(HostsError::at(at, why));
        }
        all.push((low, high, first.len()));
        at += range.len() + 1;
    }
    Ok(all)
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

fn is_in_names(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.')
}

fn check_name(offset: usize, name: &str) -> Result<(), HostsError> {
    match name.find(|char| !is_in_names(char)) {
        Some(index) => Err(odd(offset + index, &name[index..])),
        None if name.len() > NAME_MAX => Err(long(offset)),
        None => Ok(()),
    }
}

fn odd(offset: usize, from: &str) -> HostsError {
    let char = from.chars().next().unwrap_or_default();
    HostsError::at(offset, format!("{char:?} in a name of a host: it has letters, digits, -_."))
}

fn long(offset: usize) -> HostsError {
    HostsError::at(offset, format!("a name of a host has {NAME_MAX} bytes at most: shorten it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;
    use rand::RngExt;

    fn expression(text: &str) -> String {
        HostList::of_expression(text).map_or_else(|why| why.to_string(), |l| l.names.join(" "))
    }

    fn file(text: &str) -> String {
        HostList::of_file(text).map_or_else(|why| why.to_string(), |l| l.names.join(" "))
    }

    #[test]
    fn expressions_are_expanded_in_order() {
        for (text, names) in [
            ("n1", "n1"),
            (" a, b ,c ", "a b c"),
            ("n[1-3,7]", "n1 n2 n3 n7"),
            ("n[7,1-2]", "n7 n1 n2"),
            ("n[001-003]", "n001 n002 n003"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("n[8-11]", "n8 n9 n10 n11"),
            ("n[1,010,00]", "n1 n010 n00"),
            ("r[01-02]n[1-3]", "r01n1 r01n2 r01n3 r02n1 r02n2 r02n3"),
            ("n[1-2]-ib.x", "n1-ib.x n2-ib.x"),
            ("[1-2][3-4]", "13 14 23 24"),
            ("clip-[1,3],b_[5],10.0.0.[1-2]", "clip-1 clip-3 b_5 10.0.0.1 10.0.0.2"),
        ] {
            assert_eq!(expression(text), names, "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_an_error_at_its_place() {
        for (text, error) in [
            ("", "there is no host in the list"),
            ("  ", "there is no host in the list"),
            ("a,,b", "column 3: a name is missing"),
            ("a,", "column 3: a name is missing"),
            (", a", "column 1: a name is missing"),
            ("a,b,a", "column 5: a is host 1 already"),
            ("b, n[1-3,2]", "column 4: n2 is host 3 already"),
            ("n[1-3", "column 2: [ is not closed"),
            ("n[", "column 2: [ is not closed"),
            ("n1]", "column 3: ']' in a name"),
            ("n[]", "column 3: \"\" is no number"),
            ("n[1,]", "column 5: \"\" is no number"),
            ("n[1-]", "column 3: \"1-\" is no number"),
            ("n[1-2-3]", "column 3: \"1-2-3\" is no number"),
            ("n[1x2]", "column 3: \"1x2\" is no number"),
            ("n[+1]", "column 3: \"+1\" is no number"),
            ("n[1,[2]]", "column 5: \"[2\" is no number"),
            ("n[1,5-4]", "column 5: the range 5-4 goes down"),
            ("a b", "column 2: ' ' in a name"),
            ("a,n\u{e9}", "column 4: '\u{e9}' in a name"),
            ("me@a", "column 3: '@' in a name"),
            ("n[1-9999999999999999999]", "column 3: \"1-9999999999999999999\" is no number"),
        ] {
            let found = expression(text);
            assert!(found.starts_with(error), "{text:?}: {found}");
        }
        let (fits, long) = ("a".repeat(255), "a".repeat(256));
        assert_eq!(expression(&fits), fits);
        assert!(expression(&long).contains("255 bytes at most"));
        assert!(expression(&format!("{}[9-10]", "a".repeat(254))).contains("255 bytes at most"));
    }

    #[test]
    fn lists_that_are_too_long_are_refused_before_they_are_made() {
        let largest = HostList::of_expression("n[1-65535]").unwrap();
        assert_eq!(largest.name_of(NodeId(65_534)), Some("n65535"));
        assert_eq!(largest.name_of(NodeId(65_535)), None);
        for text in [
            "n[0-65535]",
            "n[0-999999999999999999]",
            "n[0-999999999999999999][0-999999999999999999]",
            "n[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]",
            "a,n[1-65535]",
        ] {
            assert!(expression(text).contains("more than 65535 hosts"), "{text}");
            assert!(file(text).contains("more than 65535 hosts"), "{text}");
        }
        let lines = "n[1-65535]\nn[1-65535]\n";
        assert_eq!(HostList::of_file(lines).unwrap().names.len(), 65_535);
        assert!(file(&format!("{lines}x")).starts_with("line 3, column 1: more than 65535"));
    }

    #[test]
    fn files_of_mpi_slurm_pbs_and_lsf_are_understood() {
        let open_mpi = "# ours\n\nn1 slots=4\nn2  slots=2 max-slots=4 # two\r\n\tn3\nn1 slots=1\n";
        assert_eq!(file(open_mpi), "n1 n2 n3");
        assert_eq!(file("n1:4\nn2:2 binding=user:0,1\nn1:1\n"), "n1 n2");
        assert_eq!(file("n[2-3]\nn1,n[7-8]:4\n"), "n2 n3 n1 n7 n8");
        assert_eq!(file("b.x\nb.x\na.x\na.x\nb.x\n"), "b.x a.x");
        assert_eq!(file("n2 4\nn1 4\nn2 2"), "n2 n1");
        for (text, error) in [
            ("# nothing\n", "there is no host in the list"),
            ("a\n b c\n", "line 2, column 4: \"c\" behind a host"),
            ("a\nb:\n", "line 2, column 2: behind : is how many"),
            ("a,b:x\n", "line 1, column 4: behind : is how many"),
            ("a\n\n  n[1-\n", "line 3, column 4: [ is not closed"),
            ("a =4\n", "line 1, column 3: \"=4\" behind a host"),
        ] {
            let found = file(text);
            assert!(found.starts_with(error), "{text:?}: {found}");
        }
    }

    fn environment(variables: &[(&str, &str)]) -> Result<Option<Announced>, HostsError> {
        HostList::of_environment(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn batch_systems_say_which_hosts_a_job_has() {
        let list = |text| AnnouncedHosts::List(HostList::of_expression(text).unwrap());
        let of = |variables: &[_]| environment(variables).unwrap();
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("SLURM_JOB_NODELIST", "n1")]), None);
        let job = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-4]"), ("PBS_NODEFILE", "/x")];
        let (variable, hosts) = ("SLURM_JOB_NODELIST", list("n[1-4]"));
        assert_eq!(of(&job), Some(Announced { variable, hosts, own: None }));
        let step = [("SLURM_STEP_NODELIST", "n[3-4]"), ("SLURM_NODEID", "1")];
        let own = Some(NodeId(1));
        let (variable, hosts) = ("SLURM_STEP_NODELIST", list("n[3-4]"));
        assert_eq!(of(&[&job[..], &step].concat()), Some(Announced { variable, hosts, own }));
        let (variable, hosts) = ("PBS_NODEFILE", AnnouncedHosts::File("/x".to_owned()));
        let pbs = [("SLURM_JOB_ID", ""), ("PBS_NODEFILE", "/x")];
        assert_eq!(of(&pbs), Some(Announced { variable, hosts, own: None }));
        let lsf = [("LSB_HOSTS", "b b a a b"), ("LSB_MCPU_HOSTS", "b 3 a 2 ")];
        let (variable, hosts) = ("LSB_MCPU_HOSTS", list("b,a"));
        assert_eq!(of(&lsf), Some(Announced { variable, hosts, own: None }));
        let (variable, hosts) = ("LSB_HOSTS", list("b,a"));
        assert_eq!(of(&lsf[..1]), Some(Announced { variable, hosts, own: None }));
    }

    #[test]
    fn variables_that_are_wrong_are_named() {
        let job = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-4]"), ("SLURM_NODEID", "1")];
        let with = |name, value| [&[(name, value)], &job[..]].concat();
        assert!(environment(&with("SLURMD_NODENAME", "n2")).is_ok());
        for (variables, error) in [
            (with("SLURM_JOB_NODELIST", "n[1-"), "SLURM_JOB_NODELIST, column 2: ["),
            (with("SLURM_NODEID", "4"), "SLURM_NODEID: 4 is no place among the 4 hosts"),
            (with("SLURM_NODEID", "-1"), "SLURM_NODEID: -1 is no place"),
            (with("SLURMD_NODENAME", "n3"), "SLURM_NODEID: 1 is n2 in SLURM_JOB_NODELIST"),
            (with("SLURMD_NODENAME", "m"), "SLURM_NODEID: this host is m, which is not among"),
            (vec![("LSB_MCPU_HOSTS", "a 4 b")], "LSB_MCPU_HOSTS, column 5: behind b there is no"),
            (vec![("LSB_MCPU_HOSTS", "a b 4")], "LSB_MCPU_HOSTS, column 1: behind a there is no"),
            (vec![("LSB_HOSTS", "a b/")], "LSB_HOSTS, column 4: '/' in a name"),
        ] {
            let found = environment(&variables).unwrap_err().to_string();
            assert!(found.starts_with(error), "{found}");
        }
    }

    #[test]
    fn a_host_finds_its_place_by_its_name() {
        let list = HostList::of_expression("a.x,b,c.x,c.y,c").unwrap();
        for (name, place) in [("a.x", 0), ("a", 0), ("a.z", 0), ("b.x", 1), ("c.y", 3), ("c", 4)] {
            assert_eq!(list.position_of(name), Ok(NodeId(place)), "{name}");
        }
        let none = list.position_of("d").unwrap_err().to_string();
        assert!(none.starts_with("this host is d, which is not among"), "{none}");
        assert!(none.contains("(a.x,b,c.x,c.y,c)"), "{none}");
        let several = list.position_of("c.z").unwrap_err().to_string();
        assert!(several.starts_with("this host is c.z, which may be c.x or c.y"), "{several}");
        let long = HostList::of_expression("n[1-100]").unwrap().position_of("d").unwrap_err();
        assert!(long.to_string().contains("n7,n8 and 92 more)"), "{long}");
    }

    #[test]
    fn any_text_is_a_list_or_an_error() {
        const CHARS: [char; 14] =
            ['a', 'n', '1', '0', '9', '[', ']', '-', ',', ' ', ':', '#', '\n', '\u{e9}'];
        let (mut good, mut bad) = (0, 0);
        for seed in 0..20_000 {
            let (mut random, _seed) = seed::of(seed);
            let length = random.random_range(0..16);
            let text: String = (0..length).map(|_| CHARS[random.random_range(0..14)]).collect();
            for list in [HostList::of_expression(&text), HostList::of_file(&text)] {
                match list {
                    Err(error) => {
                        let line = text.lines().nth(error.line.unwrap_or(1) - 1).unwrap_or("");
                        let line = if error.line.is_some() { line } else { &text };
                        let is_there = error.column.is_none_or(|at| at <= line.len() + 1);
                        assert!(is_there, "seed {seed}: {text:?}: {error}");
                        bad += 1;
                    }
                    Ok(list) => {
                        assert!((1..=65_535).contains(&list.names.len()), "seed {seed}: {text:?}");
                        let again = HostList::of_expression(&list.names.join(","));
                        assert_eq!(again.as_ref(), Ok(&list), "seed {seed}: {text:?}");
                        good += 1;
                    }
                }
            }
        }
        assert!(good > 1000 && bad > 1000, "{good} {bad}");
    }
}
