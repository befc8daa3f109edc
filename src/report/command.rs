//! `queuescope report`: reads runs, writes their report, and returns the text for the terminal.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::error::Error;
use crate::table::{join::join, parquet};
use crate::terminal::{self, escaped};

use super::files::{EXPERIMENT, ROWS, SUMMARY};
use super::merge::merge;
use super::reader::{inputs, load, sources};
use super::render::{to_markdown, to_text};
use super::{Report, outputs, page};

/// Arguments of `queuescope report`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Folders of runs or experiments, or files of rows (a proxy's records, with those that were rotated away); several
    /// are compared
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,
    /// What is shown: words for the terminal, or the same as a table or for programs
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        default_value_if("json", "true", "json")
    )]
    pub format: Format,
    /// Print all figures as JSON, as --format json does
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// File that it goes to instead of the terminal
    #[arg(long, value_name = "FILE", required_if_eq("format", "parquet"))]
    pub output: Option<PathBuf>,
    /// File of the page [default: report.html in DIR, if one folder is given]
    #[arg(long, value_name = "FILE", conflicts_with = "no_html")]
    pub html: Option<PathBuf>,
    /// Write no page
    #[arg(long)]
    pub no_html: bool,
    /// Put the folders of the shards of one run (`traffic --shard`) together into --output-dir, and report on that
    #[arg(long, requires = "output_dir", group = "together")]
    pub merge: bool,
    /// Put records of a front (the first file) and of its hops in other processes (the others) together, by request, into
    /// --output-dir, and report on that
    #[arg(long, requires = "output_dir", group = "together")]
    pub join: bool,
    /// New folder that --merge or --join makes
    #[arg(long, value_name = "DIR", requires = "together")]
    pub output_dir: Option<PathBuf>,
    /// Replace files that are no reports of queuescope as well; never one that is read
    #[arg(long)]
    pub force: bool,
}

/// The format of a report.
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

/// The name of the page, by default in the folder that it is made of.
pub const PAGE: &str = "report.html";
/// A table with a row for each run, in an experiment's folder.
const TABLE: &str = "summary.csv";
/// The report as JSON, in an experiment's folder.
pub const COMPARISON: &str = "comparison.json";
/// The errors of writing into a folder that must not be written to.
const READ_ONLY: [ErrorKind; 2] = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];

/// Makes a report, and returns the text for the terminal, of `width` columns if known.
///
/// # Errors
/// An argument is wrong, or a file cannot be read or written.
pub fn run(args: &Args, width: Option<usize>) -> Result<String, Error> {
    check(args, &args.dirs)?;
    let notes = merge_or_join(args)?;
    // After `--merge` or `--join`, the report is on the new folder.
    let made = args.output_dir.as_ref().map(std::slice::from_ref);
    let dirs = made.unwrap_or(&args.dirs);
    check(args, dirs)?;
    let notes: String = notes.iter().map(|note| format!("note: {note}\n")).collect();
    if args.format == Format::Parquet {
        return Ok(notes + &write_parquet(args, dirs)?);
    }
    let loaded = load(dirs)?;
    let report = Report::of(&loaded);
    let mut files = Vec::new();
    if let ([dir], Some(_)) = (dirs, &loaded.experiment) {
        files.push((dir.join(TABLE), report.to_csv()));
        files.push((dir.join(COMPARISON), format!("{:#}\n", report.to_json())));
    }
    files.extend(page_path(args, dirs).map(|path| (path, page::render(&report))));
    let mut text = match args.format {
        Format::Json => format!("{:#}\n", report.to_json()),
        Format::Csv => report.to_csv(),
        Format::Markdown => escaped(&to_markdown(&report)).into_owned(),
        Format::Text | Format::Parquet => {
            let width = width.filter(|_| args.output.is_none());
            escaped(&to_text(&report, width)).into_owned()
        }
    };
    if let Some(path) = &args.output {
        let mark = (args.format == Format::Text).then_some(outputs::TEXT_HEAD);
        let text = std::mem::take(&mut text);
        files.push((path.clone(), mark.unwrap_or_default().to_owned() + &text));
    }
    let mut done = String::new();
    for (path, text) in &files {
        let mut asked = [&args.output, &args.html].into_iter().flatten();
        let is_asked = asked.any(|asked| asked == path);
        match disk::replace(path, text.as_bytes()) {
            Ok(()) => done += &written(path),
            // The folder may be another's. The report is shown without the files that are usually in it.
            Err(cause) if !is_asked && READ_ONLY.contains(&cause.kind()) => {
                let (path, why) = (path.display(), cause.kind());
                let note = "--html FILE and --output FILE go elsewhere";
                terminal::print_error(&format!("note: {path} is not written ({why}); {note}\n"));
            }
            Err(cause) => return Err(Error::write(path, cause)),
        }
    }
    // Output for programs has no notes.
    if args.format != Format::Text && args.output.is_none() {
        terminal::print_error(&notes);
        return Ok(text);
    }
    Ok(notes + &text + &done)
}

fn written(path: &Path) -> String {
    format!("written: {}\n", path.display())
}

/// Checks, before anything is written, that all output files may be.
fn check(args: &Args, dirs: &[PathBuf]) -> Result<(), Error> {
    let mut all: Vec<PathBuf> = args.output.iter().cloned().collect();
    all.extend(page_path(args, dirs));
    if let ([dir], true) = (dirs, args.format != Format::Parquet)
        && dir.join(EXPERIMENT).is_file()
    {
        all.extend([TABLE, COMPARISON].map(|name| dir.join(name)));
    }
    outputs::check(&all, &inputs(dirs), args.force)
}

/// Does `--merge` or `--join`, and returns notes on it.
fn merge_or_join(args: &Args) -> Result<Vec<String>, Error> {
    let Some(dir) = &args.output_dir else {
        return Ok(Vec::new());
    };
    outputs::check_folder(dir, &[ROWS, SUMMARY])?;
    match args.merge {
        // Its notes are in the summary that it writes.
        true => merge(&args.dirs, dir).map(|()| Vec::new()),
        false => join(&args.dirs, &dir.join(ROWS)),
    }
}

/// The path of the page. Without `--html` there is one only for `--format text`, in the one folder that is given or made.
fn page_path(args: &Args, dirs: &[PathBuf]) -> Option<PathBuf> {
    if args.html.is_some() || args.no_html || args.format != Format::Text {
        return args.html.clone();
    }
    match (&args.output_dir, dirs) {
        (Some(dir), _) => Some(dir.join(PAGE)),
        (None, [dir]) if dir.is_dir() => Some(dir.join(PAGE)),
        _ => None,
    }
}

fn write_parquet(args: &Args, dirs: &[PathBuf]) -> Result<String, Error> {
    // Required by clap.
    let path = args.output.as_deref().unwrap_or(Path::new(""));
    let sources = sources(dirs)?;
    let read = parquet::write(&sources, path)?;
    let mut text = String::new();
    for (source, read) in sources.iter().zip(&read) {
        let note = read.left_out();
        text.extend(note.map(|note| format!("{}: {note}\n", source.name)));
    }
    Ok(text + &written(path))
}
