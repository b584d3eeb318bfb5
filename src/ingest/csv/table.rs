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

/// Longest row that is read, in bytes. A longer one is damage, an attack or a quote that is never
/// closed, and would otherwise be collected in memory whole.
pub const ROW_BYTES_MAX: usize = 16 << 20;

/// Longest excerpt of a value that an error quotes, in characters.
const EXCERPT_CHARS: usize = 40;

/// What can be wrong with a CSV file.
#[derive(Debug, Error)]
pub enum CsvError {
    /// The file could not be opened.
    #[error("cannot open {}: {source}; check the path and its permissions", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The operating system's words.
        source: io::Error,
    },
    /// Reading stopped in the middle.
    #[error("cannot read {} after line {line}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Last line that was read, counted from 1.
        line: u64,
        /// The operating system's words.
        source: io::Error,
    },
    /// A gzip file ends too early or is damaged.
    #[error("{} is damaged or cut off after line {line} ({detail}); copy or compress it again", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// Last line that was read, counted from 1.
        line: u64,
        /// The decoder's words.
        detail: String,
    },
    /// The file has no header.
    #[error("{} is empty; its first line must be a header that names the columns {expected}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The columns that are needed.
        expected: String,
    },
    /// A column that is needed is not in the header.
    #[error("{}: the header has no column '{column}', only {found}; add it or rename a column", path.display())]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The missing column.
        column: String,
        /// The columns found.
        found: String,
    },
    /// Two columns have one name.
    #[error("{}: the header names column '{column}' twice; rename or drop one", path.display())]
    DuplicateColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
    },
    /// A line has more or fewer fields than the header.
    #[error(
        "{} line {line}: {found} fields where the header has {expected}; quote fields that hold a comma",
        path.display()
    )]
    Ragged {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// Fields of the header.
        expected: u64,
        /// Fields of the line.
        found: u64,
    },
    /// A line is not UTF-8.
    #[error("{} line {line} is not UTF-8; convert the file, for example with iconv", path.display())]
    Encoding {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
    },
    /// A field does not hold what its column should.
    #[error("{} line {line}, column '{column}': '{value}' is not {expected}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The column.
        column: String,
        /// The beginning of the field's text.
        value: String,
        /// What the column holds, and what to do.
        expected: &'static str,
    },
    /// A mapping reads what columns do not have.
    #[error(
        "{}: the mapping reads parts of values, elements or an envelope, and a CSV file has columns alone; name them \
         as in /user_id",
        path.display()
    )]
    Nested {
        /// The file.
        path: PathBuf,
    },
    /// A row is longer than [`ROW_BYTES_MAX`].
    #[error(
        "{}: the row after line {line} is longer than {ROW_BYTES_MAX} bytes; check for a quote that is not \
         closed",
        path.display()
    )]
    LongRow {
        /// The file.
        path: PathBuf,
        /// Last line that was read, counted from 1.
        line: u64,
    },
}

impl CsvError {
    /// Whether only one row is bad: the rows after it can still be read.
    #[must_use]
    pub fn is_row(&self) -> bool {
        matches!(self, Self::Ragged { .. } | Self::Encoding { .. } | Self::Value { .. })
    }
}

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
    pub fn open(path: &Path, expected: &str) -> Result<Self, CsvError> {
        let (gzip, input) = open_text(path)?;
        Self::from_input(path, gzip, input, expected)
    }

    fn from_input(
        path: &Path,
        gzip: bool,
        input: Box<dyn Read + Send>,
        expected: &str,
    ) -> Result<Self, CsvError> {
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
            return Err(CsvError::Empty { path: table.path, expected: expected.to_owned() });
        }
        table.line = 1;
        let mut seen = HashSet::new();
        for column in &header {
            if !seen.insert(column) {
                return Err(CsvError::DuplicateColumn { path: table.path, column: column.to_owned() });
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
    pub fn require(&self, column: &str) -> Result<usize, CsvError> {
        self.find(column).ok_or_else(|| CsvError::MissingColumn {
            path: self.path.clone(),
            column: column.to_owned(),
            found: self.columns.join(", "),
        })
    }

    /// Reads the next row; `false` at the end of the file. After an error about one row
    /// ([`CsvError::is_row`]) the next call reads on.
    ///
    /// # Errors
    /// When the row is ragged or not UTF-8, or reading fails.
    pub fn advance(&mut self) -> Result<bool, CsvError> {
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
    pub fn value_error(&self, column: usize, expected: &'static str) -> CsvError {
        CsvError::Value {
            path: self.path.clone(),
            line: self.line,
            column: self.columns.get(column).cloned().unwrap_or_default(),
            value: excerpt(self.field(column)),
            expected,
        }
    }

    fn explain(&mut self, error: csv::Error) -> CsvError {
        let path = self.path.clone();
        let here = error.position().map_or(self.line, csv::Position::line);
        let line = self.line;
        match error.into_kind() {
            ErrorKind::UnequalLengths { expected_len: expected, len: found, .. } => {
                self.line = here;
                CsvError::Ragged { path, line: here, expected, found }
            }
            ErrorKind::Utf8 { .. } => {
                self.line = here;
                CsvError::Encoding { path, line: here }
            }
            ErrorKind::Io(source) if source.get_ref().is_some_and(|inner| inner.is::<RowTooLong>()) => {
                CsvError::LongRow { path, line }
            }
            ErrorKind::Io(source) if self.gzip && source.raw_os_error().is_none() => {
                CsvError::Gzip { path, line, detail: source.to_string() }
            }
            ErrorKind::Io(source) => CsvError::Read { path, line, source },
            other => CsvError::Read { path, line, source: io::Error::other(format!("{other:?}")) },
        }
    }
}

/// Opens `path`, plain or gzip (by its first bytes), as text; returns whether it is gzip.
pub(in crate::ingest) fn open_text(path: &Path) -> Result<(bool, Box<dyn Read + Send>), CsvError> {
    let open_error = |source| CsvError::Open { path: path.to_path_buf(), source };
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
pub fn read_columns<const N: usize>(path: &Path, wanted: [&str; N]) -> Result<Vec<[String; N]>, CsvError> {
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
