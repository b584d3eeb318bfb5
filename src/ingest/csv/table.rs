//! A delimited text file as rows with named columns: opens plain and gzip files, reads the header,
//! finds the wanted columns and bounds the length of a row.
//!
//! Every error names the file and, where there is one, the line, the column and the value. Knows
//! nothing of events: what the columns mean is its callers' matter.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use csv::{ErrorKind, StringRecord};
use flate2::read::MultiGzDecoder;
use thiserror::Error;

use crate::ingest::file_error::FileError;

/// Longest row that is read, in bytes. A longer one is damage, an attack or a quote that is never
/// closed, and would otherwise be collected in memory whole.
pub const ROW_BYTES_MAX: usize = 16 << 20;

/// Longest excerpt of a value that an error quotes, in characters.
const EXCERPT_CHARS: usize = 40;

/// A file of rows with named columns.
pub struct Table {
    names: Names,
    reader: csv::Reader<RowBound<Box<dyn Read + Send>>>,
    row: Line,
    gzip: bool,
}

/// A file and its columns, as errors name them.
pub struct Names {
    path: PathBuf,
    columns: Vec<String>,
}

/// A row of a file.
#[derive(Default)]
pub struct Line {
    record: StringRecord,
    number: u64,
}

impl Names {
    /// The error that field `column` of a row is not what it should be.
    #[must_use]
    pub fn value_error(&self, row: &Line, column: usize, expected: &'static str) -> FileError {
        FileError::Value {
            path: self.path.clone(),
            line: row.number,
            column: self.columns.get(column).cloned().unwrap_or_default(),
            value: excerpt(row.field(column)),
            expected,
        }
    }
}

impl Line {
    /// Where it begins, counted from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Field `column` without the blanks around it; empty if there is none.
    #[must_use]
    pub fn field(&self, column: usize) -> &str {
        self.record.get(column).unwrap_or("").trim()
    }

    /// Bytes of all fields.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.record.as_slice().len()
    }

    /// Appends it as text, for showing it to people.
    pub fn add_text(&self, text: &mut String) {
        for (number, field) in self.record.iter().enumerate() {
            if number > 0 {
                text.push(',');
            }
            text.push_str(field);
        }
    }
}

impl Table {
    /// Opens `path`, plain or gzip (by its first bytes), and reads its header. `expected` names
    /// the columns that are needed, for the error about an empty file.
    ///
    /// # Errors
    /// When the file cannot be opened or read, is empty, or names a column twice.
    pub fn open(path: &Path, expected: &str) -> Result<Self, FileError> {
        let (gzip, input) = open_text(path)?;
        Self::from_input(path, gzip, input, expected)
    }

    fn from_input(
        path: &Path,
        gzip: bool,
        input: Box<dyn Read + Send>,
        expected: &str,
    ) -> Result<Self, FileError> {
        let reader = csv::Reader::from_reader(RowBound { input, taken: 0 });
        let names = Names { path: path.to_path_buf(), columns: Vec::new() };
        let mut table = Self { names, reader, row: Line::default(), gzip };
        let header = match table.reader.headers() {
            Ok(header) => {
                let mut header = header.clone();
                header.trim();
                header
            }
            Err(error) => return Err(table.explain(error)),
        };
        if header.is_empty() {
            return Err(FileError::Empty { path: table.names.path, expected: expected.to_owned() });
        }
        table.row.number = 1;
        let mut seen = HashSet::new();
        for column in &header {
            if !seen.insert(column) {
                return Err(FileError::DuplicateColumn { path: table.names.path, column: column.to_owned() });
            }
        }
        table.names.columns = header.iter().map(str::to_owned).collect();
        Ok(table)
    }

    /// The file and its columns.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.names.path
    }

    /// The line of the row that was read last, counted from 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.row.number
    }

    /// Names of all columns, in file order.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.names.columns
    }

    /// Index of the column with this name.
    #[must_use]
    pub fn find(&self, column: &str) -> Option<usize> {
        self.columns().iter().position(|name| name == column)
    }

    /// Index of a column that has to be there.
    ///
    /// # Errors
    /// When it is not in the header.
    pub fn require(&self, column: &str) -> Result<usize, FileError> {
        self.find(column).ok_or_else(|| FileError::MissingColumn {
            path: self.names.path.clone(),
            column: column.to_owned(),
            found: self.columns().join(", "),
        })
    }

    /// Reads the next row; `false` at the end of the file. After an error about one row
    /// ([`FileError::is_row`]) the next call reads on.
    ///
    /// # Errors
    /// When the row is ragged or not UTF-8, or reading fails.
    pub fn advance(&mut self) -> Result<bool, FileError> {
        self.reader.get_mut().taken = 0;
        let Line { record, number } = &mut self.row;
        match self.reader.read_record(record) {
            Ok(true) => {
                *number = record.position().map_or(*number, csv::Position::line);
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// Gives the current row away, for a row whose memory is used again.
    pub fn take_row(&mut self, row: &mut Line) {
        std::mem::swap(&mut self.row.record, &mut row.record);
        row.number = self.row.number;
    }

    /// Field `column` of the current row; empty if there is none.
    #[must_use]
    pub fn field(&self, column: usize) -> &str {
        self.row.field(column)
    }

    /// Appends the current row as text.
    pub fn add_row_text(&self, text: &mut String) {
        self.row.add_text(text);
    }

    fn explain(&mut self, error: csv::Error) -> FileError {
        let path = self.names.path.clone();
        let line = self.row.number;
        let here = error.position().map_or(line, csv::Position::line);
        match error.into_kind() {
            ErrorKind::UnequalLengths { expected_len: expected, len: found, .. } => {
                self.row.number = here;
                FileError::Ragged { path, line: here, expected, found }
            }
            ErrorKind::Utf8 { .. } => {
                self.row.number = here;
                FileError::Encoding { path, line: here }
            }
            ErrorKind::Io(source) if source.get_ref().is_some_and(|inner| inner.is::<RowTooLong>()) => {
                FileError::LongRow { path, line }
            }
            ErrorKind::Io(source) if self.gzip && source.raw_os_error().is_none() => {
                FileError::Gzip { path, line, detail: source.to_string() }
            }
            ErrorKind::Io(source) => FileError::Read { path, line, source },
            other => FileError::Read { path, line, source: io::Error::other(format!("{other:?}")) },
        }
    }
}

/// Opens `path`, plain or gzip (by its first bytes), as text; returns whether it is gzip.
pub(in crate::ingest) fn open_text(path: &Path) -> Result<(bool, Box<dyn Read + Send>), FileError> {
    let open_error = |source| FileError::Open { path: path.to_path_buf(), source };
    let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(open_error)?);
    let gzip = file.fill_buf().map_err(open_error)?.starts_with(&[0x1f, 0x8b]);
    Ok((gzip, if gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) }))
}

fn excerpt(text: &str) -> String {
    let mut start: String = text.chars().take(EXCERPT_CHARS).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

/// Passes bytes through and fails when one row takes more than [`ROW_BYTES_MAX`] of them.
struct RowBound<R> {
    input: R,
    /// Bytes read since the last row was complete; the table sets it back.
    taken: usize,
}

#[derive(Debug, Error)]
#[error("row too long")]
struct RowTooLong;

impl<R: Read> Read for RowBound<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.taken += count;
        if self.taken > ROW_BYTES_MAX { Err(io::Error::other(RowTooLong)) } else { Ok(count) }
    }
}

/// Reads the columns `wanted` of every row of a file as texts, in the order of `wanted`.
///
/// # Errors
/// As [`Table::open`] and [`Table::advance`]; also when a wanted column is missing or a wanted field
/// is empty.
pub fn read_columns<const N: usize>(path: &Path, wanted: [&str; N]) -> Result<Vec<[String; N]>, FileError> {
    let mut table = Table::open(path, &wanted.join(","))?;
    let mut columns = [0; N];
    for (column, name) in columns.iter_mut().zip(wanted) {
        *column = table.require(name)?;
    }
    let mut rows = Vec::new();
    while table.advance()? {
        if let Some(&empty) = columns.iter().find(|&&column| table.field(column).is_empty()) {
            let expected = "a node name; fill it in or drop the line";
            return Err(table.names.value_error(&table.row, empty, expected));
        }
        rows.push(columns.map(|column| table.field(column).to_owned()));
    }
    Ok(rows)
}
