//! What can be wrong with a file of events: where, and what to do.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::csv::table::ROW_BYTES_MAX;

/// What can be wrong with a file.
#[derive(Debug, Error)]
pub enum FileError {
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
    /// A column that is needed is not there.
    #[error("{}: there is no column '{column}', only {found}; add it or rename a column", path.display())]
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
    /// A Parquet file cannot be read, or not further.
    #[error(
        "{} cannot be read as Parquet after row {row}: {detail}; check that it is whole, or write it again",
        path.display()
    )]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Rows that were read.
        row: u64,
        /// The reader's words.
        detail: String,
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

impl FileError {
    /// Whether only one row is bad: the rows after it can still be read.
    #[must_use]
    pub fn is_row(&self) -> bool {
        matches!(self, Self::Ragged { .. } | Self::Encoding { .. } | Self::Value { .. })
    }
}
