//! A delimited text file as rows with named columns: opens plain and gzip files, reads the header,
//! finds the wanted columns and bounds the length of a row.
//!
//! Every error names the file and, where there is one, the line, the column and the value. Knows
//! nothing of events: what the columns mean is its callers' matter.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use csv::{ErrorKind, StringRecord, Trim};
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
    path: PathBuf,
    columns: Vec<String>,
    reader: csv::Reader<RowBound<Box<dyn Read + Send>>>,
    record: StringRecord,
    line: u64,
    gzip: bool,
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
        let reader = csv::ReaderBuilder::new().trim(Trim::All).from_reader(RowBound { input, taken: 0 });
        let mut table = Self {
            path: path.to_path_buf(),
            columns: Vec::new(),
            reader,
            record: StringRecord::new(),
            line: 0,
            gzip,
        };
        let header = match table.reader.headers() {
            Ok(header) => header.clone(),
            Err(error) => return Err(table.explain(error)),
        };
        if header.is_empty() {
            return Err(FileError::Empty { path: table.path, expected: expected.to_owned() });
        }
        table.line = 1;
        let mut seen = HashSet::new();
        for column in &header {
            if !seen.insert(column) {
                return Err(FileError::DuplicateColumn { path: table.path, column: column.to_owned() });
            }
        }
        table.columns = header.iter().map(str::to_owned).collect();
        Ok(table)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The line of the row that was read last, counted from 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Names of all columns, in file order.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Index of the column with this name.
    #[must_use]
    pub fn find(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|name| name == column)
    }

    /// Index of a column that has to be there.
    ///
    /// # Errors
    /// When it is not in the header.
    pub fn require(&self, column: &str) -> Result<usize, FileError> {
        self.find(column).ok_or_else(|| FileError::MissingColumn {
            path: self.path.clone(),
            column: column.to_owned(),
            found: self.columns.join(", "),
        })
    }

    /// Reads the next row; `false` at the end of the file. After an error about one row
    /// ([`FileError::is_row`]) the next call reads on.
    ///
    /// # Errors
    /// When the row is ragged or not UTF-8, or reading fails.
    pub fn advance(&mut self) -> Result<bool, FileError> {
        self.reader.get_mut().taken = 0;
        let read = self.reader.read_record(&mut self.record);
        match read {
            Ok(true) => {
                self.line = self.record.position().map_or(self.line, csv::Position::line);
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// Field `column` of the current row; empty if there is none.
    #[must_use]
    pub fn field(&self, column: usize) -> &str {
        self.record.get(column).unwrap_or("")
    }

    /// The current row as text, for showing it to people.
    #[must_use]
    pub fn row_text(&self) -> String {
        let mut text = String::new();
        self.add_row_text(&mut text);
        text
    }

    /// Appends the same to `text`.
    pub fn add_row_text(&self, text: &mut String) {
        for (number, field) in self.record.iter().enumerate() {
            if number > 0 {
                text.push(',');
            }
            text.push_str(field);
        }
    }

    /// The error that field `column` of the current row is not what it should be.
    #[must_use]
    pub fn value_error(&self, column: usize, expected: &'static str) -> FileError {
        FileError::Value {
            path: self.path.clone(),
            line: self.line,
            column: self.columns.get(column).cloned().unwrap_or_default(),
            value: excerpt(self.field(column)),
            expected,
        }
    }

    fn explain(&mut self, error: csv::Error) -> FileError {
        let path = self.path.clone();
        let here = error.position().map_or(self.line, csv::Position::line);
        let line = self.line;
        match error.into_kind() {
            ErrorKind::UnequalLengths { expected_len: expected, len: found, .. } => {
                self.line = here;
                FileError::Ragged { path, line: here, expected, found }
            }
            ErrorKind::Utf8 { .. } => {
                self.line = here;
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
            return Err(table.value_error(empty, "a node name; fill it in or drop the line"));
        }
        rows.push(columns.map(|column| table.field(column).to_owned()));
    }
    Ok(rows)
}
