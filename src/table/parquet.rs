//! Writes rows as Parquet, in bounded memory: one row group at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use crate::clock::{Stamp, seconds};
use crate::disk::NewFile;
use crate::error::Error;
use crate::request::{COLUMNS, Unit};

use super::Table;
use super::rows::{ReadStats, read_parts};

/// The least number of rows in a group, but for the last of a run; about so many are in memory at a time.
const GROUP_ROWS: usize = 50_000;

/// A run whose rows are written.
#[derive(Clone, Debug)]
pub struct Source {
    /// The value of the column `run`.
    pub name: String,
    /// Its files of rows.
    pub files: Vec<PathBuf>,
    /// Its start, if known.
    pub began: Option<Stamp>,
}

/// Writes the rows of runs to one file; returns how the rows of each were read.
///
/// # Errors
/// If rows cannot be read, there are none, or the file cannot be written.
pub fn write(sources: &[Source], path: &Path) -> Result<Vec<ReadStats>, Error> {
    let parquet_error = |cause: ParquetError| Error::write(path, cause);
    let file_error = |cause| Error::write(path, cause);
    let mut new = NewFile::replacing(path).map_err(file_error)?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let properties = Arc::new(properties.build());
    let schema = parse_message_type(&schema()).map_err(parquet_error)?;
    let mut out =
        SerializedFileWriter::new(&mut new, Arc::new(schema), properties).map_err(parquet_error)?;
    let (mut stats, mut written) = (Vec::new(), Ok(()));
    for source in sources {
        let mut table = Table::default();
        let mut write = |table: &mut Table, began: Option<Stamp>, min: usize| {
            // After a failure nothing more is written.
            if written.is_ok() && table.len() > min {
                let group = out.next_row_group();
                written = group.and_then(|to| write_group(&source.name, began, table, to));
                *table = Table::default();
            }
        };
        let mut sink = |more, began| {
            table.append(more);
            write(&mut table, began, GROUP_ROWS);
        };
        let read = read_parts(&source.files, source.began, &[], &mut sink)?;
        write(&mut table, read.zero, 0);
        stats.push(read);
    }
    if stats.iter().all(|stats| stats.rows == 0) {
        let reasons = std::iter::once("no request has a row".to_owned())
            .chain(stats.iter().filter_map(ReadStats::left_out));
        let reasons: Vec<String> = reasons.collect();
        let message = format!("nothing to write: {}", reasons.join("; "));
        return Err(Error::read(path, message));
    }
    written.and_then(|()| out.close()).map_err(parquet_error)?;
    new.commit().map_err(file_error)?;
    Ok(stats)
}

/// The columns `run` and `began`, then [`COLUMNS`].
fn schema() -> String {
    let columns = COLUMNS.iter().map(|column| {
        let (kind, logical_type) = match column.unit {
            Unit::Text => ("BYTE_ARRAY", " (UTF8)"),
            Unit::Bool => ("BOOLEAN", ""),
            Unit::Count => ("INT64", ""),
            Unit::Latency | Unit::Seconds | Unit::Time => ("DOUBLE", ""),
        };
        format!("OPTIONAL {kind} {}{logical_type};", column.name)
    });
    let columns: String = columns.collect();
    format!("message rows {{ OPTIONAL BYTE_ARRAY run (UTF8); OPTIONAL DOUBLE began; {columns} }}")
}

/// Writes a row group of a run.
fn write_group(
    run: &str,
    began: Option<Stamp>,
    table: &Table,
    mut to: SerializedRowGroupWriter<'_, &mut NewFile>,
) -> Result<(), ParquetError> {
    let rows = || 0..table.len();
    write_column::<ByteArrayType>(&mut to, rows().map(|_| Some(ByteArray::from(run))))?;
    write_column::<DoubleType>(&mut to, rows().map(|_| began.map(Stamp::seconds)))?;
    for column in &COLUMNS {
        let text = |row| Some(table.text(column.id, row)).filter(|text| !text.is_empty());
        let number = |row| table.integer(column.id, row);
        match column.unit {
            Unit::Text => write_column::<ByteArrayType>(
                &mut to,
                rows().map(|row| text(row).map(ByteArray::from)),
            ),
            Unit::Bool => {
                let is = |row| text(row).map(|text| text == "True");
                write_column::<BoolType>(&mut to, rows().map(is))
            }
            Unit::Count => write_column::<Int64Type>(&mut to, rows().map(number)),
            Unit::Latency | Unit::Seconds | Unit::Time => {
                write_column::<DoubleType>(&mut to, rows().map(|row| number(row).map(seconds)))
            }
        }?;
    }
    to.close().map(drop)
}

/// Writes a column: its definition levels (1 for a value, 0 for an empty cell) and its values.
fn write_column<T: DataType>(
    to: &mut SerializedRowGroupWriter<'_, &mut NewFile>,
    cells: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let cells: Vec<Option<T::T>> = cells.collect();
    let levels: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    let values: Vec<T::T> = cells.into_iter().flatten().collect();
    if let Some(mut writer) = to.next_column()? {
        writer
            .typed::<T>()
            .write_batch(&values, Some(&levels), None)?;
        writer.close()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    /// Writes a file of rows, and the same as Parquet twice.
    fn written(rows: &str) -> (tempfile::TempDir, Result<Vec<ReadStats>, String>) {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("a.csv");
        let head = "req_id,success,host,input_length,arrival_time,ttft,outcome\n";
        std::fs::write(&csv, format!("{head}{rows}cut")).unwrap();
        let source = Source {
            name: "one".to_owned(),
            files: vec![csv],
            began: None,
        };
        let path = folder.path().join("rows.parquet");
        let written = write(&[source.clone(), source], &path);
        (folder, written.map_err(|error| error.to_string()))
    }

    #[test]
    fn without_a_row_there_is_nothing_to_write() {
        let (folder, error) = written("");
        let message = "rows.parquet: nothing to write: no request has a row; 1 of 1 rows";
        let error = error.unwrap_err();
        assert!(error.contains(message), "{error}");
        assert!(!folder.path().join("rows.parquet").exists());
    }

    #[test]
    fn rows_are_the_same_in_parquet_with_null_for_empty_cells() {
        let rows =
            "x-0,True,\"a,b\",7,1795000000.250000000,0.125,ok\nx-1,False,,,1795000001.5,,timeout\n";
        let (folder, stats) = written(rows);
        assert_eq!(stats.unwrap()[0].broken, 1);
        let file = File::open(folder.path().join("rows.parquet")).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let rows = reader.get_row_iter(None).unwrap();
        let rows: Vec<_> = rows.map(Result::unwrap).collect();
        assert_eq!(rows.len(), 4);
        let field = |row: usize, name: &str| {
            let mut columns = rows[row].get_column_iter();
            columns.find(|(known, _)| *known == name).unwrap().1.clone()
        };
        for (row, name, value) in [
            (0, "run", Field::Str("one".to_owned())),
            (0, "began", Field::Double(1_795_000_000.0)),
            (0, "host", Field::Str("a,b".to_owned())),
            (0, "success", Field::Bool(true)),
            (0, "input_length", Field::Long(7)),
            (3, "arrival_time", Field::Double(1.5)),
            (1, "host", Field::Null),
            (1, "input_length", Field::Null),
            (1, "stream", Field::Null),
        ] {
            assert_eq!(field(row, name), value, "{name}");
        }
    }
}
