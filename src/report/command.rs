//! `queuescope report`: reads runs, writes what is said of them, and gives what the terminal shows.

use std::io;
use std::path::{Path, PathBuf};

use super::files::EXPERIMENT;
use super::reader::{self, Loaded, load};
use super::side_by_side::{Told, to_csv, to_json, told};
use super::told::{to_markdown, to_text};

/// What to report on, and how.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Folders of runs or experiments, or files of rows (a proxy's records, with those that were rotated away); several
    /// are compared
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,
    /// What is shown: words for the terminal, or the same as a table or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// File that it goes to instead of the terminal
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How a report is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For the terminal.
    #[default]
    Text,
    /// All figures of every run.
    Json,
    /// A row a run.
    Csv,
    /// Tables for a document.
    Markdown,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Reported {
    /// What the terminal shows; empty where it went to a file.
    pub text: String,
    /// Files that were written.
    pub files: Vec<PathBuf>,
}

/// Why nothing can be reported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was given cannot be read.
    #[error(transparent)]
    Read(#[from] reader::Error),
    /// A file cannot be written.
    #[error("{}: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
}

/// A row a run, in an experiment's folder.
const SUMMARY: &str = "summary.csv";
/// What programs read of an experiment.
const COMPARISON: &str = "comparison.json";

impl Error {
    /// Whether what was given is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Read(_))
    }
}

/// Makes a report; `width`: the terminal's columns, if they are known.
///
/// # Errors
/// What was given cannot be read, or a file cannot be written.
pub fn run(args: &Args, width: Option<usize>) -> Result<Reported, Error> {
    let loaded = load(&args.dirs)?;
    let told = told(&loaded);
    let mut reported = Reported::default();
    if let ([dir], Some(_)) = (args.dirs.as_slice(), &loaded.experiment) {
        reported.files = of_experiment(dir, &loaded, &told)?;
    }
    let text = match args.format {
        Format::Text => to_text(&loaded, &told, width.filter(|_| args.output.is_none())),
        Format::Json => format!("{:#}\n", to_json(&loaded, &told)),
        Format::Csv => to_csv(&told),
        Format::Markdown => to_markdown(&loaded, &told),
    };
    match &args.output {
        None => reported.text = text,
        Some(path) => {
            write(path, &text)?;
            reported.files.push(path.clone());
        }
    }
    if args.format == Format::Text || args.output.is_some() {
        let files = reported.files.iter();
        let files = files.map(|path| format!("written: {}\n", path.display()));
        reported.text.extend(files);
    }
    Ok(reported)
}

/// The files that every experiment gets.
fn of_experiment(dir: &Path, loaded: &Loaded, told: &[Told<'_>]) -> Result<Vec<PathBuf>, Error> {
    debug_assert!(dir.join(EXPERIMENT).is_file());
    let sheet = dir.join(SUMMARY);
    write(&sheet, &to_csv(told))?;
    let comparison = dir.join(COMPARISON);
    write(&comparison, &format!("{:#}\n", to_json(loaded, told)))?;
    Ok(vec![sheet, comparison])
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|cause| Error::Write {
        path: path.to_owned(),
        cause,
    })
}
