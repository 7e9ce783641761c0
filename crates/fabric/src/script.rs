//! Which operations go wrong, and how: rules, and their text.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message.
    Send,
    /// A transfer from the peer.
    Pull,
    /// A transfer to the peer.
    Push,
}

/// Which of the operations are hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The next so many.
    Next(u64),
    /// Every n-th; 0 = none.
    Every(u64),
    /// The n-th alone, counted from 1.
    At(u64),
    /// The n-th and all after it.
    From(u64),
}

/// What happens to an operation that is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not leave: its link is lost.
    Cut,
    /// It is answered [`FabricError::Full`](crate::FabricError::Full).
    Full,
    /// A message leaves after this time, and so do those behind it.
    Delay(Duration),
    /// A byte of a frame is changed on its way.
    Spoil,
    /// The token of a transfer ends [`Outcome::Late`](crate::Outcome::Late).
    Late,
    /// The link is lost when half of a transfer's bytes have moved.
    Tear,
    /// A transfer is said to have ended well, and no byte has moved: what was there before is.
    Lose,
}

/// One line of a [`FaultScript`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    operation: Operation,
    when: When,
    fault: Fault,
    seen: u64,
}

impl Rule {
    /// Lets `fault` happen to these operations. None if it cannot: only messages are delayed and
    /// spoiled, only transfers are late, torn and lost.
    pub fn new(operation: Operation, when: When, fault: Fault) -> Option<Self> {
        let fits = match fault {
            Fault::Cut | Fault::Full => true,
            Fault::Delay(_) | Fault::Spoil => operation == Operation::Send,
            Fault::Late | Fault::Tear | Fault::Lose => operation != Operation::Send,
        };
        fits.then_some(Self { operation, when, fault, seen: 0 })
    }

    /// Counts the operation if the rule is about its kind; whether it is hit.
    fn hits(&mut self, operation: Operation) -> bool {
        if self.operation != operation {
            return false;
        }
        self.seen += 1;
        match self.when {
            When::Next(count) => self.seen <= count,
            When::Every(nth) => nth > 0 && self.seen.is_multiple_of(nth),
            When::At(number) => self.seen == number,
            When::From(first) => self.seen >= first,
        }
    }
}

/// The rules of any number of [`Faulty`](crate::Faulty) fabrics, to be changed at any time from any
/// thread.
///
/// Clones share the rules. The first rule that hits decides; those after it do not see the
/// operation.
#[derive(Clone, Debug, Default)]
pub struct FaultScript(Arc<Mutex<Script>>);

#[derive(Debug, Default)]
struct Script {
    rules: Vec<Rule>,
    hits: u64,
}

impl FaultScript {
    /// A script without rules: everything works.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts these rules in place of the others.
    pub fn replace(&self, rules: Vec<Rule>) {
        self.lock().rules = rules;
    }

    /// Operations hit so far: a test that injects faults asserts that they happened.
    pub fn hits(&self) -> u64 {
        self.lock().hits
    }

    pub(crate) fn decide(&self, operation: Operation) -> Option<Fault> {
        let mut script = self.lock();
        let fault =
            script.rules.iter_mut().find_map(|rule| rule.hits(operation).then_some(rule.fault))?;
        script.hits += 1;
        Some(fault)
    }

    /// A thread that panicked with the lock left nothing half done.
    fn lock(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is wrong with a script, and in which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// Counted from 1.
    pub line: usize,
    /// For people.
    pub what: String,
}

impl std::fmt::Display for ScriptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ScriptError {}

/// Reads a script: a rule on each line that is neither empty nor begins with `#`.
///
/// ```
/// let rules = forebay_fabric::parse_script(
///     "send delay 5ms every 3\n\
///      send cut at 100\n\
///      pull tear at 2\n\
///      push late next 1\n",
/// );
/// assert_eq!(rules.map(|rules| rules.len()), Ok(4));
/// ```
///
/// # Errors
/// The first line that is not understood, and why.
pub fn parse_script(text: &str) -> Result<Vec<Rule>, ScriptError> {
    let mut rules = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words: Vec<_> = line.split_whitespace().collect();
        if words.first().is_none_or(|word| word.starts_with('#')) {
            continue;
        }
        let rule = parse_line(&words).map_err(|what| ScriptError { line: index + 1, what })?;
        rules.push(rule);
    }
    Ok(rules)
}

fn parse_line(words: &[&str]) -> Result<Rule, String> {
    let [name, fault, rest @ ..] = words else {
        return Err("expected OPERATION FAULT [WHEN]".into());
    };
    let operation = match *name {
        "send" => Operation::Send,
        "pull" => Operation::Pull,
        "push" => Operation::Push,
        other => return Err(format!("unknown operation {other}; send, pull or push")),
    };
    let (made, rest) = match (*fault, rest) {
        ("delay", [time, rest @ ..]) => (Fault::Delay(time_of(time)?), rest),
        ("delay", []) => return Err("delay needs a time, as 50ms or 2s".into()),
        ("cut", rest) => (Fault::Cut, rest),
        ("full", rest) => (Fault::Full, rest),
        ("spoil", rest) => (Fault::Spoil, rest),
        ("late", rest) => (Fault::Late, rest),
        ("tear", rest) => (Fault::Tear, rest),
        ("lose", rest) => (Fault::Lose, rest),
        (other, _) => {
            let known = "cut, full, delay, spoil, late, tear or lose";
            return Err(format!("unknown fault {other}; {known}"));
        }
    };
    let number = |word: &str| match word.parse::<u64>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{word} is not a number above 0")),
    };
    let when = match rest {
        [] => When::Every(1),
        ["next", count] => When::Next(number(count)?),
        ["every", nth] => When::Every(number(nth)?),
        ["at", place] => When::At(number(place)?),
        ["from", first] => When::From(number(first)?),
        _ => {
            let text = rest.join(" ");
            return Err(format!("unknown condition {text}; next N, every N, at N or from N"));
        }
    };
    Rule::new(operation, when, made).ok_or_else(|| {
        format!(
            "{fault} cannot happen to {name}: send has delay and spoil, the others late, tear and lose"
        )
    })
}

fn time_of(word: &str) -> Result<Duration, String> {
    let wrong = || format!("{word} is not a time, as 50ms or 2s");
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = word.split_at(digits);
    let number: u32 = number.parse().map_err(|_| wrong())?;
    match unit {
        "us" => Ok(Duration::from_micros(number.into())),
        "ms" => Ok(Duration::from_millis(number.into())),
        "s" => Ok(Duration::from_secs(number.into())),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        let text = "# faults\n\nsend cut at 3\nsend full next 2\n  send delay 50us every 5\n\
                    send spoil from 9\npull late\npush tear at 1\npull cut\npush full\npull lose next 2\n";
        let rule = |operation, when, fault| Rule::new(operation, when, fault).unwrap();
        assert_eq!(
            parse_script(text).unwrap(),
            [
                rule(Operation::Send, When::At(3), Fault::Cut),
                rule(Operation::Send, When::Next(2), Fault::Full),
                rule(Operation::Send, When::Every(5), Fault::Delay(Duration::from_micros(50))),
                rule(Operation::Send, When::From(9), Fault::Spoil),
                rule(Operation::Pull, When::Every(1), Fault::Late),
                rule(Operation::Push, When::At(1), Fault::Tear),
                rule(Operation::Pull, When::Every(1), Fault::Cut),
                rule(Operation::Push, When::Every(1), Fault::Full),
                rule(Operation::Pull, When::Next(2), Fault::Lose),
            ]
        );
    }

    #[test]
    fn errors_name_their_line() {
        for (line, word) in [
            ("send", "OPERATION"),
            ("receive cut", "receive"),
            ("send break", "break"),
            ("send delay", "50ms"),
            ("send delay 5", "5 is not"),
            ("send delay 99999999999s", "not a time"),
            ("send cut next", "next"),
            ("send cut next 0", "0 is not"),
            ("send cut at -1", "-1"),
            ("send cut at 3 every 4", "at 3 every 4"),
            ("send lose", "lose cannot happen to send"),
            ("send late", "late cannot happen to send"),
            ("pull delay 1s", "delay cannot happen to pull"),
        ] {
            let error = parse_script(&format!("send cut\n\n{line}\n")).unwrap_err();
            assert_eq!(error.line, 3, "{line}");
            assert!(error.to_string().contains(word), "{line}: {error}");
        }
    }
}
