//! Rows to columns: of each record the first field, then of each the second, and so on; and back.

use crate::error::{Error, Result, doing};
use crate::records::{Records, shorter};
use crate::{Context, Input, Output};
use std::io::SeekFrom;

/// Fields of a record at most.
const FIELDS_MAX: usize = 1 << 16;

/// Rows to columns, or back. A file may have several matrices, one after the other, each of
/// `rows` records; without `rows` the whole file is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transpose {
    /// The rows.
    pub records: Records,
    /// Bytes of the fields of a row, which they fill.
    pub fields: Vec<u32>,
    /// Rows of a matrix; none: all that the file has.
    pub rows: Option<u64>,
    /// From columns to rows.
    pub is_inverse: bool,
}

impl Transpose {
    /// Lengths of fields as they are written: numbers with commas between them, each may be
    /// `LENGTHxCOUNT`.
    ///
    /// # Errors
    /// What is none.
    pub fn fields_of(text: &str) -> Result<Vec<u32>> {
        let mut fields = Vec::new();
        for part in text.split(',') {
            let wrong = || {
                Error::Option(format!(
                    "\"{}\" is no length of a field; give bytes, or BYTESxCOUNT, for example 8,4x3",
                    part.trim()
                ))
            };
            let (length, count) = part.trim().split_once('x').unwrap_or((part.trim(), "1"));
            let length: u32 = length.parse().map_err(|_| wrong())?;
            let count: usize = count.parse().map_err(|_| wrong())?;
            if length == 0 || count == 0 {
                return Err(wrong());
            }
            if fields.len() + count > FIELDS_MAX {
                return Err(Error::Option(format!("more than {FIELDS_MAX} fields")));
            }
            fields.extend(std::iter::repeat_n(length, count));
        }
        Ok(fields)
    }

    /// Checks that the fields fill a record.
    pub(crate) fn check(&self) -> Result<()> {
        self.records.check()?;
        let sum: u64 = self.fields.iter().map(|&length| u64::from(length)).sum();
        if sum != u64::from(self.records.record) || self.fields.is_empty() {
            return Err(Error::Option(format!(
                "the fields have {sum} bytes, and a record {}; give fields that fill it",
                self.records.record
            )));
        }
        if self.rows == Some(0) {
            return Err(Error::Option("a matrix has at least one row".to_owned()));
        }
        Ok(())
    }

    /// Transposes `length` bytes; returns how many records there are.
    pub(crate) fn run(
        &self,
        input: &mut dyn Input,
        length: u64,
        output: &mut dyn Output,
        context: &Context,
    ) -> Result<u64> {
        let count = self.records.count(length)?;
        let rows = self.rows.unwrap_or(count);
        if rows > 0 && count % rows != 0 {
            return Err(Error::Unfit(format!(
                "has {count} records, which are not matrices of {rows} rows: {} are left; give \
                 other rows",
                count % rows
            )));
        }
        self.records.copy_header(input, output)?;
        let mut done = 0;
        while done < count {
            let from = self.records.header + done * u64::from(self.records.record);
            self.matrix(input, output, from, rows, context)?;
            done += rows;
        }
        Ok(count)
    }

    /// One matrix, from the same byte of the file on as it goes to. Some rows are in memory at
    /// once; the more, the longer the pieces of columns.
    fn matrix(
        &self,
        input: &mut dyn Input,
        output: &mut dyn Output,
        from: u64,
        rows: u64,
        context: &Context,
    ) -> Result<()> {
        let record = u64::from(self.records.record);
        // A group is there twice: as rows and as columns.
        let group_max = (context.memory / 2 / record).max(1);
        let (mut by_row, mut by_column) = (Vec::new(), Vec::new());
        let mut first = 0;
        while first < rows {
            let group = group_max.min(rows - first);
            by_row.resize((group * record) as usize, 0);
            by_column.resize((group * record) as usize, 0);
            let at_rows = from + first * record;
            if self.is_inverse {
                self.columns(from, first, group, rows, |at, range| {
                    read_at(input, at, &mut by_column[range])
                })?;
                self.exchange(group, |row, column| {
                    by_row[row].copy_from_slice(&by_column[column]);
                });
                write_at(output, at_rows, &by_row)?;
            } else {
                read_at(input, at_rows, &mut by_row)?;
                self.exchange(group, |row, column| {
                    by_column[column].copy_from_slice(&by_row[row]);
                });
                self.columns(from, first, group, rows, |at, range| {
                    write_at(output, at, &by_column[range])
                })?;
            }
            first += group;
        }
        Ok(())
    }

    /// Where in the file the pieces of the columns of a group are, and where in memory.
    fn columns(
        &self,
        from: u64,
        first: u64,
        group: u64,
        rows: u64,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let (mut column_at, mut at) = (from, 0);
        for &length in &self.fields {
            let length = u64::from(length);
            let piece = (group * length) as usize;
            each(column_at + first * length, at..at + piece)?;
            column_at += rows * length;
            at += piece;
        }
        Ok(())
    }

    /// Which bytes of rows are which of columns, for a group.
    fn exchange(
        &self,
        group: u64,
        mut each: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let record = self.records.record as usize;
        let (mut in_row, mut in_columns) = (0, 0);
        for &length in &self.fields {
            let length = length as usize;
            for row in 0..group as usize {
                let (from, to) = (row * record + in_row, in_columns + row * length);
                each(from..from + length, to..to + length);
            }
            in_row += length;
            in_columns += group as usize * length;
        }
    }
}

fn read_at(input: &mut dyn Input, at: u64, bytes: &mut [u8]) -> Result<()> {
    input.seek(SeekFrom::Start(at)).map_err(doing("seek in the original"))?;
    input.read_exact(bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => shorter(),
        _ => doing("read the original")(error),
    })
}

fn write_at(output: &mut dyn Output, at: u64, bytes: &[u8]) -> Result<()> {
    output.seek(SeekFrom::Start(at)).map_err(doing("seek in the result"))?;
    output.write_all(bytes).map_err(doing("write the result"))
}
