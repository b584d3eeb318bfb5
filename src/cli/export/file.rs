//! The file of an export: written beside its place under another name, and renamed once it is whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type, UInt64Type};
use arrow_array::{Array, FixedSizeListArray, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema};
use flate2::Compression;
use flate2::write::GzEncoder;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The file format of Arrow IPC.
    Arrow,
    /// CSV with a header.
    Csv,
    /// The same, compressed with gzip.
    CsvGz,
    /// A JSON object a line.
    Ndjson,
}

impl Form {
    /// The form that the ending of a path names.
    ///
    /// # Errors
    /// It names none.
    pub fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let forms = [
            (".arrow", Self::Arrow),
            (".csv", Self::Csv),
            (".csv.gz", Self::CsvGz),
            (".ndjson", Self::Ndjson),
        ];
        match forms.into_iter().find(|(ending, _)| name.len() > ending.len() && name.ends_with(ending)) {
            Some((_, form)) => Ok(form),
            None => bail!("--to {}: a name ends in .arrow, .csv, .csv.gz or .ndjson", path.display()),
        }
    }
}

/// A file that is being written. Dropped before it is finished, it leaves nothing.
pub(super) struct ExportFile {
    path: PathBuf,
    partial: Partial,
    rows: Rows,
}

/// The path of what is not whole yet.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // It is gone once the file is whole.
        let _ = std::fs::remove_file(&self.0);
    }
}

enum Rows {
    Arrow(Box<FileWriter<BufWriter<File>>>),
    Csv(Box<csv::Writer<Sink>>),
    Ndjson(Sink),
}

enum Sink {
    Plain(BufWriter<File>),
    Packed(Box<GzEncoder<BufWriter<File>>>),
}

impl Sink {
    fn finish(self) -> io::Result<BufWriter<File>> {
        match self {
            Self::Plain(file) => Ok(file),
            Self::Packed(file) => file.finish(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Packed(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Packed(file) => file.flush(),
        }
    }
}

impl ExportFile {
    /// Begins a file for rows with these columns.
    ///
    /// # Errors
    /// It cannot be created, or a column has a type that the form has not.
    pub fn create(path: &Path, form: Form, schema: &Schema) -> Result<Self> {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let beside = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let file = File::create(&beside).with_context(|| format!("{}", beside.display()))?;
        let (partial, file) = (Partial(beside), BufWriter::new(file));
        let rows = match form {
            Form::Arrow => Rows::Arrow(Box::new(FileWriter::try_new(file, schema)?)),
            Form::Csv => begin_csv(Sink::Plain(file), schema)?,
            Form::CsvGz => {
                begin_csv(Sink::Packed(Box::new(GzEncoder::new(file, Compression::default()))), schema)?
            }
            Form::Ndjson => Rows::Ndjson(Sink::Plain(file)),
        };
        Ok(Self { path: path.to_path_buf(), partial, rows })
    }

    /// Adds rows.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match &mut self.rows {
            Rows::Arrow(writer) => Ok(writer.write(batch)?),
            Rows::Csv(writer) => {
                let (columns, mut cells) = (columns(batch)?, Vec::new());
                for row in 0..batch.num_rows() {
                    cells.clear();
                    columns.iter().for_each(|(_, column)| column.cells(row, &mut cells));
                    writer.write_record(&cells)?;
                }
                Ok(())
            }
            Rows::Ndjson(sink) => {
                let columns = columns(batch)?;
                for row in 0..batch.num_rows() {
                    for (i, (name, column)) in columns.iter().enumerate() {
                        sink.write_all(if i == 0 { b"{" } else { b"," })?;
                        serde_json::to_writer(&mut *sink, name)?;
                        sink.write_all(b":")?;
                        column.write_json(row, sink)?;
                    }
                    sink.write_all(b"}\n")?;
                }
                Ok(())
            }
        }
    }

    /// Ends the file, and puts it in its place: how many bytes it has.
    ///
    /// # Errors
    /// It cannot be written or renamed.
    pub fn finish(self) -> Result<u64> {
        let file = match self.rows {
            Rows::Arrow(writer) => writer.into_inner()?,
            Rows::Csv(writer) => {
                writer.into_inner().map_err(|error| io::Error::other(error.to_string()))?.finish()?
            }
            Rows::Ndjson(sink) => sink.finish()?,
        };
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        std::fs::rename(&self.partial.0, &self.path)?;
        Ok(bytes)
    }
}

/// Begins with a header.
fn begin_csv(sink: Sink, schema: &Schema) -> Result<Rows> {
    let mut writer = csv::Writer::from_writer(sink);
    writer.write_record(schema.fields().iter().flat_map(|field| header(field)))?;
    Ok(Rows::Csv(Box::new(writer)))
}

/// The names of a column in CSV: a vector has one for each value, `e0` and on of embeddings, `f0` and on of features,
/// as in event files.
fn header(field: &Field) -> Vec<String> {
    match field.data_type() {
        DataType::FixedSizeList(_, width) => {
            let letter = if field.name() == "features" { 'f' } else { 'e' };
            (0..*width).map(|i| format!("{letter}{i}")).collect()
        }
        _ => vec![field.name().clone()],
    }
}

/// A column whose values are written as text.
enum Column<'a> {
    Text(&'a StringArray),
    Time(&'a Int64Array),
    Position(&'a UInt64Array),
    Vector(Vectors<'a>),
}

#[derive(Clone, Copy)]
struct Vectors<'a> {
    array: &'a FixedSizeListArray,
    values: &'a [f32],
    width: usize,
}

impl<'a> Vectors<'a> {
    fn of(array: &'a FixedSizeListArray) -> Option<Self> {
        let values = array.values().as_primitive_opt::<Float32Type>()?.values();
        Some(Self { array, values, width: usize::try_from(array.value_length()).ok()? })
    }

    /// The vector of a row; `None` where it is null.
    fn row(self, row: usize) -> Option<&'a [f32]> {
        self.values.get(row * self.width..(row + 1) * self.width).filter(|_| self.array.is_valid(row))
    }
}

/// The columns of a batch with their names.
fn columns(batch: &RecordBatch) -> Result<Vec<(String, Column<'_>)>> {
    let schema = batch.schema();
    let mut columns = Vec::with_capacity(batch.num_columns());
    for (field, array) in schema.fields().iter().zip(batch.columns()) {
        let column = match field.data_type() {
            DataType::Utf8 => array.as_string_opt().map(Column::Text),
            DataType::Int64 => array.as_primitive_opt::<Int64Type>().map(Column::Time),
            DataType::UInt64 => array.as_primitive_opt::<UInt64Type>().map(Column::Position),
            DataType::FixedSizeList(..) => {
                array.as_fixed_size_list_opt().and_then(Vectors::of).map(Column::Vector)
            }
            _ => None,
        };
        match column {
            Some(column) => columns.push((field.name().clone(), column)),
            None => bail!("the column {} is of an unknown type; is the daemon newer?", field.name()),
        }
    }
    Ok(columns)
}

/// A value of an array, or null.
fn value<T>(array: &dyn Array, row: usize, get: impl FnOnce() -> T) -> Option<T> {
    array.is_valid(row).then(get)
}

impl Column<'_> {
    /// Appends the cells of a row; empty ones where the value is null.
    fn cells(&self, row: usize, out: &mut Vec<String>) {
        let cell = match self {
            Self::Text(array) => value(array, row, || array.value(row).to_owned()),
            Self::Time(array) => value(array, row, || array.value(row).to_string()),
            Self::Position(array) => value(array, row, || array.value(row).to_string()),
            Self::Vector(vectors) => {
                match vectors.row(row) {
                    Some(vector) => out.extend(vector.iter().map(|value| format!("{value:?}"))),
                    None => out.resize(out.len() + vectors.width, String::new()),
                }
                return;
            }
        };
        out.push(cell.unwrap_or_default());
    }

    fn write_json(&self, row: usize, sink: &mut Sink) -> serde_json::Result<()> {
        match self {
            Self::Text(array) => serde_json::to_writer(sink, &value(array, row, || array.value(row))),
            Self::Time(array) => serde_json::to_writer(sink, &value(array, row, || array.value(row))),
            Self::Position(array) => serde_json::to_writer(sink, &value(array, row, || array.value(row))),
            Self::Vector(vectors) => serde_json::to_writer(sink, &vectors.row(row)),
        }
    }
}
