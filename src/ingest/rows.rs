//! The events of a file, row by row. Its form follows from the ending of its name: lines of JSON, Parquet (`parquet`),
//! and otherwise CSV. Rows are plain events, or a mapping reads them: the columns of a CSV file with any header, the
//! documents of a JSON file, the rows of a Parquet file. A row that is no event is a rejection that says which it is,
//! and reading goes on after it.

mod parquet;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::parquet::ParquetRows;
use super::csv::CsvReader;
use super::csv::table::{ROW_BYTES_MAX, Table, open_text};
use super::decode::{DecodeOptions, TEXT_BYTES_MAX};
use super::file_error::FileError;
use super::mapping::{Decoded, Mapping, Message, MessageReader};
use super::rejection::{Reason, Rejection};
use crate::event::{EdgeEvent, Event, Incoming, NodeKey};

/// Endings of names of files whose lines are JSON.
const JSON_ENDINGS: [&str; 3] = [".jsonl", ".ndjson", ".json"];

/// Longest feature row where the stream's is not known.
const FEATURES_MAX: usize = 1 << 20;

/// Some programs write it before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The ending of names of Parquet files.
pub(super) const PARQUET_ENDING: &str = ".parquet";

/// Reads a file.
pub struct Rows(Kind);

enum Kind {
    Plain(Box<CsvReader>),
    Columns(Box<Columns>),
    Lines(Box<Lines>),
    Parquet(Box<ParquetRows>),
}

/// A CSV file whose columns a mapping reads.
struct Columns {
    table: Table,
    /// The place of each column in the mapping.
    places: Vec<Option<usize>>,
    reader: MessageReader,
    mapping: Arc<Mapping>,
}

/// A file with a JSON document a line.
struct Lines {
    path: PathBuf,
    input: BufReader<Box<dyn Read + Send>>,
    gzip: bool,
    reader: MessageReader,
    text: Vec<u8>,
    line: u64,
}

/// What a row is, and what is wrong with it alone.
pub type Row = Result<Decoded, Rejection>;

/// Whether the lines of a file are JSON, by its name.
pub(super) fn is_lines(path: &Path) -> bool {
    let name = path.to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    JSON_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Refuses what is no file to be read again after a restart, such as a pipe, which would also block whoever opens it.
///
/// # Errors
/// It is none, or is not there.
pub fn expect_file(path: &Path) -> Result<(), FileError> {
    let refused = |source| FileError::Open { path: path.to_path_buf(), source };
    if std::fs::metadata(path).map_err(refused)?.is_file() {
        return Ok(());
    }
    Err(refused(std::io::Error::other("it is no regular file, which could be read again after a restart")))
}

impl Rows {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be opened, or lacks columns that are read.
    pub fn open(
        path: &Path,
        options: DecodeOptions,
        mapping: Option<Arc<Mapping>>,
    ) -> Result<Self, FileError> {
        let name = path.to_string_lossy();
        if name.ends_with(PARQUET_ENDING) {
            return Ok(Self(Kind::Parquet(Box::new(ParquetRows::open(path, options, mapping)?))));
        }
        if is_lines(path) {
            return Ok(Self(Kind::Lines(Box::new(Lines::open(path, options, mapping)?))));
        }
        Ok(Self(match mapping {
            None => Kind::Plain(Box::new(CsvReader::open(path)?)),
            Some(mapping) => Kind::Columns(Box::new(Columns::open(path, options, mapping)?)),
        }))
    }

    /// Opens a file of plain events, whose feature rows may be of any length: for those who do not know the stream's.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_plain(path: &Path) -> Result<Self, FileError> {
        Self::open(path, DecodeOptions::for_rows_of(FEATURES_MAX), None)
    }

    /// How many feature columns there are, where features are columns.
    #[must_use]
    pub fn feature_columns(&self) -> Option<usize> {
        match &self.0 {
            Kind::Plain(reader) => Some(reader.feature_dimension()),
            Kind::Parquet(rows) => rows.feature_columns(),
            Kind::Columns(_) | Kind::Lines(_) => None,
        }
    }

    /// One sentence about columns that are not read, if there are any and nobody said so.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        match &self.0 {
            Kind::Plain(reader) => reader.warning(),
            Kind::Parquet(rows) => rows.warning(),
            Kind::Columns(_) | Kind::Lines(_) => None,
        }
    }

    /// Appends the text of the row that was read last.
    pub fn add_row_text(&self, text: &mut String) {
        match &self.0 {
            Kind::Plain(reader) => reader.add_row_text(text),
            Kind::Columns(columns) => columns.table.add_row_text(text),
            Kind::Lines(lines) => text.push_str(&String::from_utf8_lossy(&lines.text)),
            Kind::Parquet(rows) => rows.add_row_text(text),
        }
    }

    /// The same alone.
    #[must_use]
    pub fn row_text(&self) -> String {
        let mut text = String::new();
        self.add_row_text(&mut text);
        text
    }

    /// The next row; `None` at the end.
    ///
    /// # Errors
    /// When the file cannot be read on.
    pub fn next_row(&mut self) -> Result<Option<Row>, FileError> {
        match &mut self.0 {
            Kind::Plain(reader) => match reader.next() {
                None => Ok(None),
                Some(Ok(event)) => {
                    let (path, line) = reader.place();
                    Ok(Some(check_texts(event).map_err(|rejection| placed((path, "line", line), rejection))))
                }
                Some(Err(error)) => of_row(error),
            },
            Kind::Columns(columns) => match columns.table.advance() {
                Ok(false) => Ok(None),
                Ok(true) => Ok(Some(columns.read())),
                Err(error) => of_row(error),
            },
            Kind::Lines(lines) => lines.next_row(),
            Kind::Parquet(rows) => rows.next_row(),
        }
    }
}

/// A bad row, if it is no more than that.
fn of_row(error: FileError) -> Result<Option<Row>, FileError> {
    if error.is_row() {
        Ok(Some(Err(Rejection::new(Reason::MalformedRow, error.to_string()))))
    } else {
        Err(error)
    }
}

/// A rejection with its file, and with the number of its line or row.
fn placed((path, what, number): (&Path, &str, u64), rejection: Rejection) -> Rejection {
    let detail = format!("{} {what} {number}: {}", path.display(), rejection.detail);
    Rejection { detail, ..rejection }
}

impl Columns {
    fn open(path: &Path, options: DecodeOptions, mapping: Arc<Mapping>) -> Result<Self, FileError> {
        let table = Table::open(path, "that the mapping reads")?;
        let places = mapping.columns(table.columns()).map_err(|missing| match missing {
            Some(column) => FileError::MissingColumn {
                path: path.to_path_buf(),
                column,
                found: table.columns().join(", "),
            },
            None => FileError::Nested { path: path.to_path_buf() },
        })?;
        let reader = MessageReader::new(options, Some(Arc::clone(&mapping)));
        Ok(Self { table, places, reader, mapping })
    }

    fn read(&self) -> Row {
        let fields = self.places.iter().enumerate();
        let fields = fields.filter_map(|(column, place)| Some(((*place)?, self.table.field(column))));
        let read = self.mapping.read_fields(fields, self.reader.decoder());
        read.map_err(|rejection| placed((self.table.path(), "line", self.table.line()), rejection))
    }
}

impl Lines {
    fn open(path: &Path, options: DecodeOptions, mapping: Option<Arc<Mapping>>) -> Result<Self, FileError> {
        let (gzip, input) = open_text(path)?;
        let (input, path) = (BufReader::new(input), path.to_path_buf());
        let reader = MessageReader::new(options, mapping);
        Ok(Self { path, input, gzip, reader, text: Vec::new(), line: 0 })
    }

    /// Blank lines are no rows.
    fn next_row(&mut self) -> Result<Option<Row>, FileError> {
        loop {
            self.text.clear();
            let mut bounded = (&mut self.input).take(ROW_BYTES_MAX as u64 + 1);
            let read = bounded.read_until(b'\n', &mut self.text);
            let (path, line) = (&self.path, self.line);
            let count = read.map_err(|source| match self.gzip && source.raw_os_error().is_none() {
                true => FileError::Gzip { path: path.clone(), line, detail: source.to_string() },
                false => FileError::Read { path: path.clone(), line, source },
            })?;
            if count == 0 {
                return Ok(None);
            }
            if count > ROW_BYTES_MAX {
                return Err(FileError::LongRow { path: path.clone(), line });
            }
            if line == 0 && self.text.starts_with(BYTE_ORDER_MARK) {
                self.text.drain(..BYTE_ORDER_MARK.len());
            }
            self.line += 1;
            let end = self.text.trim_ascii_end().len();
            self.text.truncate(end);
            if end > 0 {
                let read = self.reader.read(&Message::of_value(&self.text));
                return Ok(Some(
                    read.map_err(|rejection| placed((&self.path, "line", self.line), rejection)),
                ));
            }
        }
    }
}

/// The reader bounds rows; names have a bound of their own.
fn check_texts(event: EdgeEvent) -> Row {
    let long = |key: &NodeKey| matches!(key, NodeKey::Text(text) if text.len() > TEXT_BYTES_MAX);
    if long(&event.src) || long(&event.dst) {
        let detail = format!("a node name has more than {TEXT_BYTES_MAX} bytes");
        return Err(Rejection::new(Reason::BadId, detail));
    }
    if event.edge_type.as_ref().is_some_and(|t| t.len() > TEXT_BYTES_MAX) {
        return Err(Rejection::new(Reason::TooLarge, format!("type has more than {TEXT_BYTES_MAX} bytes")));
    }
    Ok(Decoded::One(Incoming::new(Event::Edge(event))))
}
