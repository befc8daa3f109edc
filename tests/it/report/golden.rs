//! What `queuescope report` says of the runs in `tests/data/report`, in every format: `tests/data/golden/report/`, written anew with
//! `UPDATE=1`.

use std::path::{Path, PathBuf};

use queuescope::report::command::{Args, Format, run};
use serde_json::{Value, json};

use crate::support::docs::assert_file;
use crate::support::files;

/// What the report says, with the folder's own name out of it; its page goes there, if anywhere.
fn said(folder: &Path, format: Format, dirs: &str, html: Option<PathBuf>) -> String {
    let args = Args {
        dirs: dirs.split(' ').map(|dir| folder.join(dir)).collect(),
        format,
        no_html: html.is_none(),
        html,
        ..Args::default()
    };
    unnamed(folder, &run(&args, None).unwrap())
}

/// A text without the folder's own name.
fn unnamed(folder: &Path, text: &str) -> String {
    text.replace(folder.to_str().unwrap(), "DIR")
}

fn pinned(name: &str, said: &str) {
    assert_file(&format!("tests/data/golden/report/{name}"), said);
}

/// The same with long series as their length, sum and first values.
fn squeezed(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(squeezed),
        Value::Array(all) if all.len() > 12 && all.iter().all(Value::is_number) => {
            let sum: f64 = all.iter().filter_map(Value::as_f64).sum();
            *value = json!([all.len(), format!("{sum:.9}"), all[1], all[2]]);
        }
        Value::Array(all) => all.iter_mut().for_each(squeezed),
        _ => {}
    }
}

/// Reports on copies, as an experiment's go into its folder, in words and as CSV, and their page with its JSON, which
/// `scripts/report-shots.sh` opens in a browser. Returns the JSON.
fn in_words(name: &str, dirs: &str) -> Value {
    let (from, folder) = (
        Path::new("tests/data/report").join(name),
        tempfile::tempdir().unwrap(),
    );
    for file in files(&from) {
        let to = folder.path().join(file.strip_prefix(&from).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(&file, to).unwrap();
    }
    for (format, end) in [
        (Format::Text, "txt"),
        (Format::Markdown, "md"),
        (Format::Csv, "csv"),
    ] {
        let said = said(folder.path(), format, dirs, None);
        pinned(&format!("{name}.{end}"), &said);
    }
    let pages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
    std::fs::create_dir_all(&pages).unwrap();
    let html = pages.join(format!("{name}.html"));
    let json = said(folder.path(), Format::Json, dirs, Some(html));
    std::fs::write(pages.join(format!("{name}.json")), &json).unwrap();
    // An experiment's is there to be read too.
    if let Ok(written) = std::fs::read_to_string(folder.path().join(dirs).join("comparison.json")) {
        assert_eq!(unnamed(folder.path(), &written).trim(), json.trim());
    }
    serde_json::from_str(&json).unwrap()
}

#[test]
fn runs_are_reported_as_ever() {
    for (name, dirs) in [
        // A run of real servers; two runs against each other; servers that were disturbed.
        ("run", "run"),
        ("pair", "slow quick"),
        ("faults", "faults"),
        // A run that was cut short, rows that cannot be read, and names that would be scripts on the page.
        ("cut", "cut"),
        // Rows of a proxy, of before there was a column of outcomes; some of several sequences.
        ("records", "records.csv"),
    ] {
        let mut json = in_words(name, dirs);
        squeezed(&mut json);
        pinned(&format!("{name}.json"), &format!("{json:#}\n"));
    }
}

/// Runs of a search are not compared.
#[test]
fn a_grid_and_a_search_are_reported_as_ever() {
    for name in ["grid", "search"] {
        let json = in_words(name, "grid");
        let keys = ["experiment", "comparison", "not_compared"];
        let parts: Value = keys
            .map(|key| (key, json[key].clone()))
            .into_iter()
            .collect();
        pinned(&format!("{name}.json"), &format!("{parts:#}\n"));
    }
}
