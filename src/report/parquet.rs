//! Rows as Parquet, for engines that read more than one machine's memory holds. Bounded: a group of rows at a time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use crate::disk::New;
use crate::request::column::Unit;
use crate::request::columns::COLUMNS;
use crate::request::columns::Column;

use super::cells::Value;
use super::rows::{self, Told, each};

/// Rows of a group: so many are held at a time.
const GROUP: usize = 50_000;

/// A run whose rows go to the file.
#[derive(Clone, Debug)]
pub struct Source {
    /// What the column `run` says.
    pub name: String,
    /// Its files of rows.
    pub files: Vec<PathBuf>,
    /// When it began, Unix seconds, if that is known.
    pub began: Option<f64>,
}

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The rows.
    #[error(transparent)]
    Rows(#[from] rows::Error),
    /// The file.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// What the file's writer says.
    #[error("{}: {cause}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What it says.
        cause: ParquetError,
    },
}

/// A column of the group that is being gathered: a level a row (1: it has a value), and the values.
#[derive(Debug)]
struct Gathered {
    levels: Vec<i16>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Numbers(Vec<f64>),
    Counts(Vec<i64>),
    Yes(Vec<bool>),
    Words(Vec<ByteArray>),
}

/// The file under way.
struct Writing<'a> {
    file: SerializedFileWriter<&'a mut New>,
    /// `run` and `began`, then [`COLUMNS`].
    columns: Vec<Gathered>,
    rows: usize,
    failed: Option<ParquetError>,
}

/// Writes the rows of some runs to one file; what is known of the rows of each.
///
/// # Errors
/// Rows cannot be read, or the file cannot be written.
pub fn write(sources: &[Source], path: &Path) -> Result<Vec<Told>, Error> {
    let parquet = |cause| Error::Parquet {
        path: path.to_owned(),
        cause,
    };
    let file = |cause| Error::File {
        path: path.to_owned(),
        cause,
    };
    let mut new = New::beside(path).map_err(file)?;
    let mut writing = Writing::new(&mut new).map_err(parquet)?;
    let mut told = Vec::new();
    for source in sources {
        let began = began(source)?;
        let sink = &mut |values: &[(usize, Value<'_>)]| writing.add(&source.name, began, values);
        told.push(each(&source.files, began, &[], sink)?);
    }
    writing.finish().map_err(parquet)?;
    new.put().map_err(file)?;
    Ok(told)
}

/// Where the times of a run count from: as told, else as its first row tells.
fn began(source: &Source) -> Result<Option<f64>, Error> {
    match (source.began, source.files.first()) {
        (None, Some(first)) => Ok(rows::began(first)?),
        (began, _) => Ok(began),
    }
}

impl<'a> Writing<'a> {
    fn new(file: &'a mut New) -> Result<Writing<'a>, ParquetError> {
        let columns = COLUMNS.iter().map(|column| {
            let kind = match column.unit {
                Unit::Text => "BYTE_ARRAY",
                Unit::Bool => "BOOLEAN",
                Unit::Count => "INT64",
                Unit::Latency | Unit::Seconds | Unit::Time => "DOUBLE",
            };
            let as_text = if column.unit == Unit::Text {
                " (UTF8)"
            } else {
                ""
            };
            format!("OPTIONAL {kind} {}{as_text};", column.name)
        });
        let columns: String = columns.collect();
        let schema = format!(
            "message rows {{ OPTIONAL BYTE_ARRAY run (UTF8); OPTIONAL DOUBLE began; {columns} }}"
        );
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
        let schema = Arc::new(parse_message_type(&schema)?);
        let mut gathered = vec![Values::Words(Vec::new()), Values::Numbers(Vec::new())];
        gathered.extend(COLUMNS.iter().map(Values::of));
        let gathered = gathered.into_iter().map(|values| Gathered {
            levels: Vec::new(),
            values,
        });
        Ok(Writing {
            file: SerializedFileWriter::new(file, schema, Arc::new(properties.build()))?,
            columns: gathered.collect(),
            rows: 0,
            failed: None,
        })
    }

    fn add(&mut self, run: &str, began: Option<f64>, values: &[(usize, Value<'_>)]) {
        self.put(0, &Value::Word(run.into()));
        if let Some(began) = began {
            self.put(1, &Value::Number(began));
        }
        for (at, value) in values {
            self.put(at + 2, value);
        }
        self.rows += 1;
        for column in &mut self.columns {
            column.levels.resize(self.rows, 0);
        }
        if self.rows == GROUP {
            self.hand_on();
        }
    }

    fn put(&mut self, at: usize, value: &Value<'_>) {
        if let Some(column) = self.columns.get_mut(at) {
            column.values.push(value);
            column.levels.push(1);
        }
    }

    /// Writes the group; after a failure nothing more, which [`Writing::finish`] tells.
    fn hand_on(&mut self) {
        if self.failed.is_none() {
            self.failed = self.group().err();
        }
        for column in &mut self.columns {
            column.clear();
        }
        self.rows = 0;
    }

    fn group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for column in &self.columns {
            if let Some(mut writer) = group.next_column()? {
                column.write(&mut writer)?;
                writer.close()?;
            }
        }
        group.close().map(drop)
    }

    fn finish(mut self) -> Result<(), ParquetError> {
        if self.rows > 0 {
            self.hand_on();
        }
        match self.failed {
            Some(failed) => Err(failed),
            None => self.file.close().map(drop),
        }
    }
}

impl Values {
    fn of(column: &Column) -> Values {
        match column.unit {
            Unit::Text => Values::Words(Vec::new()),
            Unit::Bool => Values::Yes(Vec::new()),
            Unit::Count => Values::Counts(Vec::new()),
            Unit::Latency | Unit::Seconds | Unit::Time => Values::Numbers(Vec::new()),
        }
    }

    fn push(&mut self, value: &Value<'_>) {
        match (self, value) {
            (Values::Numbers(all), Value::Number(value)) => all.push(*value),
            (Values::Counts(all), Value::Number(value)) => all.push(*value as i64),
            (Values::Yes(all), Value::Word(word)) => all.push(word == "True"),
            (Values::Words(all), Value::Word(word) | Value::Id(word)) => {
                all.push(ByteArray::from(word.as_ref()));
            }
            // A column has values of one kind.
            _ => {}
        }
    }
}

impl Gathered {
    fn clear(&mut self) {
        self.levels.clear();
        match &mut self.values {
            Values::Numbers(all) => all.clear(),
            Values::Counts(all) => all.clear(),
            Values::Yes(all) => all.clear(),
            Values::Words(all) => all.clear(),
        }
    }

    fn write(&self, writer: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = Some(self.levels.as_slice());
        match &self.values {
            Values::Numbers(all) => writer.typed::<DoubleType>().write_batch(all, levels, None),
            Values::Counts(all) => writer.typed::<Int64Type>().write_batch(all, levels, None),
            Values::Yes(all) => writer.typed::<BoolType>().write_batch(all, levels, None),
            Values::Words(all) => writer
                .typed::<ByteArrayType>()
                .write_batch(all, levels, None),
        }
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    #[test]
    fn rows_are_the_same_in_parquet_with_what_is_unknown_null() {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("a.csv");
        let head = "req_id,success,host,input_length,arrival_time,ttft,outcome\n";
        let rows = "x-0,True,\"a,b\",7,1795000000.250000000,0.125,ok\nx-1,False,,,1795000001.5,,timeout\ncut\n";
        std::fs::write(&csv, format!("{head}{rows}")).unwrap();
        let path = folder.path().join("rows.parquet");
        let source = Source {
            name: "one".to_owned(),
            files: vec![csv],
            began: None,
        };
        let told = write(&[source.clone(), source], &path).unwrap();
        assert_eq!(told[0].broken, 1);
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let rows: Vec<_> = reader
            .get_row_iter(None)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(rows.len(), 4);
        let field = |row: usize, name: &str| {
            let mut columns = rows[row].get_column_iter();
            columns.find(|(known, _)| *known == name).unwrap().1.clone()
        };
        assert_eq!(field(0, "run"), Field::Str("one".to_owned()));
        assert_eq!(field(0, "began"), Field::Double(1_795_000_000.0));
        assert_eq!(field(0, "host"), Field::Str("a,b".to_owned()));
        assert_eq!(field(0, "success"), Field::Bool(true));
        assert_eq!(field(0, "input_length"), Field::Long(7));
        assert_eq!(field(2, "arrival_time"), Field::Double(0.25));
        assert_eq!(field(3, "arrival_time"), Field::Double(1.5));
        assert_eq!(field(3, "outcome"), Field::Str("timeout".to_owned()));
        for name in ["host", "input_length", "ttft", "model", "stream"] {
            assert_eq!(field(1, name), Field::Null, "{name}");
        }
    }
}
