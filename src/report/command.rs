//! `queuescope report`: reads runs, writes what is said of them, and gives what the terminal shows.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk;

use crate::terminal::shown;

use super::files::ROWS;
use super::join::{self, join};
use super::merge::{self, merge};
use super::outputs;
use super::page;
use super::parquet;
use super::reader::{self, inputs, load, sources};
use super::runs::Report;
use super::words::{to_markdown, to_text};

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
    /// File of the page [default: report.html in DIR, if one folder is given]
    #[arg(long, value_name = "FILE", conflicts_with = "no_html")]
    pub html: Option<PathBuf>,
    /// Write no page
    #[arg(long)]
    pub no_html: bool,
    /// Put the folders of the shards of one run (`traffic --shard`) together into --output-dir, and report on that
    #[arg(long, requires = "output_dir")]
    pub merge: bool,
    /// Put records of a front (the first file) and of its hops in other processes (the others) together, by request, into
    /// --output-dir, and report on that
    #[arg(long, requires = "output_dir", conflicts_with = "merge")]
    pub join: bool,
    /// New folder that --merge or --join makes
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Replace files that are no reports of queuescope as well; never one that is read
    #[arg(long)]
    pub force: bool,
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
    /// All rows of every run, typed, for engines that query; needs --output.
    Parquet,
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
    /// Parquet, which is no text.
    #[error("--format parquet: give the file by --output FILE, it is not for a terminal")]
    NoOutput,
    /// It cannot be written as Parquet.
    #[error(transparent)]
    Parquet(#[from] parquet::Error),
    /// Shards that make no run.
    #[error(transparent)]
    Merge(#[from] merge::Error),
    /// Rows that cannot be joined.
    #[error(transparent)]
    Join(#[from] join::Error),
    /// A front alone.
    #[error("--join: give the front's file first and then those of its hops, at least one")]
    NoHops,
    /// A file that is not to be written.
    #[error(transparent)]
    Output(#[from] outputs::Error),
    /// A file cannot be written.
    #[error("{}: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
}

/// The page, in the folder of what it is of.
const PAGE: &str = "report.html";
/// A row a run, in an experiment's folder.
const SUMMARY: &str = "summary.csv";
/// What programs read of an experiment.
const COMPARISON: &str = "comparison.json";

impl Error {
    /// Whether what was given is wrong.
    pub fn is_usage(&self) -> bool {
        !matches!(
            self,
            Error::Write { .. }
                | Error::Parquet(parquet::Error::File { .. } | parquet::Error::Parquet { .. })
                | Error::Join(join::Error::File { .. })
                | Error::Merge(merge::Error::File { .. })
        )
    }
}

/// Makes a report; `width`: the terminal's columns, if they are known.
///
/// # Errors
/// What was given cannot be read, or a file cannot be written.
pub fn run(args: &Args, width: Option<usize>) -> Result<Reported, Error> {
    check(args)?;
    let (args, notes) = &put_together(args)?;
    // What was put together is read as well.
    check(args)?;
    if args.format == Format::Parquet {
        return as_parquet(args);
    }
    let loaded = load(&args.dirs)?;
    let report = Report::of(&loaded);
    let mut reported = Reported::default();
    // For people only.
    let notes = notes
        .iter()
        .filter(|_| args.format == Format::Text || args.output.is_some());
    let notes: String = notes.map(|note| format!("note: {note}\n")).collect();
    if let ([dir], Some(_)) = (args.dirs.as_slice(), &loaded.experiment) {
        reported.files = of_experiment(dir, &report)?;
    }
    if let Some(path) = page_of(args) {
        write(&path, &page::render(&report))?;
        reported.files.push(path);
    }
    let text = match args.format {
        Format::Json => format!("{:#}\n", report.to_json()),
        Format::Csv => report.to_csv(),
        Format::Markdown => shown(&to_markdown(&report)).into_owned(),
        Format::Text | Format::Parquet => {
            let width = width.filter(|_| args.output.is_none());
            shown(&to_text(&report, width)).into_owned()
        }
    };
    match &args.output {
        None => reported.text = notes + &text,
        Some(path) => {
            reported.text = notes;
            let mark = match args.format {
                Format::Text => outputs::TEXT,
                _ => "",
            };
            write(path, &format!("{mark}{text}"))?;
            reported.files.push(path.clone());
        }
    }
    // What programs read is not followed by words.
    if args.format == Format::Text || args.output.is_some() {
        let files = reported.files.iter();
        let files = files.map(|path| format!("written: {}\n", path.display()));
        reported.text.extend(files);
    }
    Ok(reported)
}

/// Looks whether all that will be written may be, before anything is.
fn check(args: &Args) -> Result<(), Error> {
    let mut all: Vec<PathBuf> = args.output.iter().cloned().collect();
    all.extend(page_of(args));
    if let ([dir], true) = (args.dirs.as_slice(), args.format != Format::Parquet)
        && reader::is_experiment(dir)
    {
        all.extend([SUMMARY, COMPARISON].map(|name| dir.join(name)));
    }
    Ok(outputs::check(&all, &inputs(&args.dirs), args.force)?)
}

/// What is to be reported on, which `--merge` and `--join` make first, with what is to be said of that.
fn put_together(args: &Args) -> Result<(Args, Vec<String>), Error> {
    let Some(dir) = args.output_dir.clone().filter(|_| args.merge || args.join) else {
        return Ok((args.clone(), Vec::new()));
    };
    let notes = if args.merge {
        // They stand in the summary that it writes.
        merge(&args.dirs, &dir)?;
        Vec::new()
    } else {
        let Some((front, hops)) = args.dirs.split_first().filter(|(_, hops)| !hops.is_empty())
        else {
            return Err(Error::NoHops);
        };
        std::fs::create_dir_all(&dir).map_err(|cause| Error::Write {
            path: dir.clone(),
            cause,
        })?;
        join(front, hops, &dir.join(ROWS))?.notes
    };
    let args = Args {
        dirs: vec![dir],
        merge: false,
        join: false,
        ..args.clone()
    };
    Ok((args, notes))
}

/// Where the page goes: by itself only beside what the terminal shows, and into the one folder that was given or is made.
fn page_of(args: &Args) -> Option<PathBuf> {
    if args.html.is_some() || args.no_html || args.format != Format::Text {
        return args.html.clone();
    }
    let made = args.output_dir.as_ref().filter(|_| args.merge || args.join);
    match (made, args.dirs.as_slice()) {
        (Some(dir), _) => Some(dir.join(PAGE)),
        (None, [dir]) if dir.is_dir() => Some(dir.join(PAGE)),
        _ => None,
    }
}

fn as_parquet(args: &Args) -> Result<Reported, Error> {
    let path = args.output.as_ref().ok_or(Error::NoOutput)?;
    let sources = sources(&args.dirs)?;
    let told = parquet::write(&sources, path)?;
    let mut text = String::new();
    for (source, told) in sources.iter().zip(&told) {
        if told.broken > 0 {
            text.push_str(&format!(
                "{}: {} rows cannot be read and are left out\n",
                source.name, told.broken
            ));
        }
    }
    text.push_str(&format!("written: {}\n", path.display()));
    Ok(Reported {
        text,
        files: vec![path.clone()],
    })
}

/// The files that every experiment gets.
fn of_experiment(dir: &Path, report: &Report<'_>) -> Result<Vec<PathBuf>, Error> {
    let (sheet, comparison) = (dir.join(SUMMARY), dir.join(COMPARISON));
    write(&sheet, &report.to_csv())?;
    write(&comparison, &format!("{:#}\n", report.to_json()))?;
    Ok(vec![sheet, comparison])
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    disk::replace(path, text.as_bytes()).map_err(|cause| Error::Write {
        path: path.to_owned(),
        cause,
    })
}
