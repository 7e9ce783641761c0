//! Filtering: the records for which conditions hold.

use crate::error::{Error, Result, doing};
use crate::records::{Constant, Field, Records, shorter};
use crate::{Input, Output};
use std::cmp::Ordering;
use std::io::{BufWriter, Write};
use std::str::FromStr;

/// Conditions at most.
const CONDITIONS_MAX: usize = 16;

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    GreaterOrEqual,
    Greater,
}

impl Operator {
    /// Those of two characters first.
    const ALL: [(&str, Operator); 6] = [
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];

    /// Whether it holds for what a comparison gave; a NaN is not equal to anything.
    fn holds(self, ordering: Option<Ordering>) -> bool {
        let Some(ordering) = ordering else { return self == Operator::NotEqual };
        match self {
            Operator::Less => ordering.is_lt(),
            Operator::LessOrEqual => ordering.is_le(),
            Operator::Equal => ordering.is_eq(),
            Operator::NotEqual => ordering.is_ne(),
            Operator::GreaterOrEqual => ordering.is_ge(),
            Operator::Greater => ordering.is_gt(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Condition {
    field: Field,
    operator: Operator,
    constant: Constant,
}

/// Conditions that all hold: `FIELD OPERATOR VALUE`, with `and` between them, where OPERATOR is
/// one of `<`, `<=`, `==`, `!=`, `>=`, `>`, and VALUE a number, or `'text'` or `0x` with hex
/// digits for a field of bytes.
///
/// ```
/// use forebay_active::filter::Conditions;
///
/// assert!("f64@24 > 1.5 and u32@0 != 7".parse::<Conditions>().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions(Vec<Condition>);

impl FromStr for Conditions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Conditions> {
        let conditions: Result<Vec<_>> = split_at_and(text).into_iter().map(condition).collect();
        let conditions = conditions?;
        if conditions.len() > CONDITIONS_MAX {
            let what = format!("{} conditions; give at most {CONDITIONS_MAX}", conditions.len());
            return Err(Error::Option(what));
        }
        Ok(Conditions(conditions))
    }
}

/// Parts between ` and `, but for those within quotes.
fn split_at_and(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut is_quoted) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        is_quoted ^= byte == b'\'';
        if !is_quoted && at >= from && text.as_bytes()[at..].starts_with(b" and ") {
            parts.push(&text[from..at]);
            from = at + " and ".len();
        }
    }
    parts.push(&text[from..]);
    parts
}

fn condition(text: &str) -> Result<Condition> {
    let operator = text.find(['<', '>', '=', '!']).and_then(|at| {
        let found = Operator::ALL.into_iter().find(|(sign, _)| text[at..].starts_with(sign));
        found.map(|(sign, operator)| (at, sign.len(), operator))
    });
    let Some((at, length, operator)) = operator else {
        return Err(Error::Option(format!(
            "\"{}\" is no condition; give FIELD, one of < <= == != >= >, and a value, for example \
             f64@24 > 1.5",
            text.trim()
        )));
    };
    let field: Field = text[..at].parse()?;
    let constant = field.constant(text[at + length..].trim())?;
    Ok(Condition { field, operator, constant })
}

/// The records for which conditions hold, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// The records.
    pub records: Records,
    /// What holds for those that are kept.
    pub conditions: Conditions,
}

impl Filter {
    /// Checks that the records have the fields.
    pub(crate) fn check(&self) -> Result<()> {
        self.records.check()?;
        let Conditions(conditions) = &self.conditions;
        conditions.iter().try_for_each(|of| of.field.check(self.records.record))
    }

    fn holds(&self, record: &[u8]) -> bool {
        let Conditions(conditions) = &self.conditions;
        conditions.iter().all(|of| of.operator.holds(of.field.compare(record, &of.constant)))
    }

    /// Filters `length` bytes; returns how many records there are, and how many were kept.
    pub(crate) fn run(
        &self,
        input: &mut dyn Input,
        length: u64,
        output: &mut dyn Output,
    ) -> Result<(u64, u64)> {
        let count = self.records.count(length)?;
        let mut output = BufWriter::with_capacity(1 << 20, output);
        self.records.copy_header(input, &mut output)?;
        let record = self.records.record as usize;
        let at_once = ((1 << 20) / record).max(1) as u64;
        let mut block = Vec::new();
        let (mut left, mut kept) = (count, 0);
        while left > 0 {
            block.resize(left.min(at_once) as usize * record, 0);
            input.read_exact(&mut block).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => shorter(),
                _ => doing("read records")(error),
            })?;
            for record in block.chunks_exact(record).filter(|record| self.holds(record)) {
                output.write_all(record).map_err(doing("write records"))?;
                kept += 1;
            }
            left -= left.min(at_once);
        }
        output.flush().map_err(doing("write records"))?;
        Ok((count, kept))
    }
}
