//! The request log of `--export-metrics-to-file`: a JSON line a request, a file an hour, as SGLang writes it.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use parking_lot::Mutex;

use crate::clock::Stamp;

use super::parameters::Shown;

/// Where the lines go.
#[derive(Debug)]
pub(super) struct RequestLog {
    folder: PathBuf,
    /// What lines repeat of their request.
    pub(super) shown: Shown,
    open: Mutex<Option<Hour>>,
}

/// The file of one hour.
#[derive(Debug)]
struct Hour {
    name: String,
    file: File,
}

impl RequestLog {
    /// A log in `folder`, which is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn create(folder: PathBuf, shown: Shown) -> std::io::Result<RequestLog> {
        std::fs::create_dir_all(&folder)?;
        Ok(RequestLog {
            folder,
            shown,
            open: Mutex::new(None),
        })
    }

    /// Appends the line of a request, of which `parameters` and `meta_info` are JSON objects, to the file of
    /// the hour (UTC; the real one takes the machine's time zone). A line that cannot be written is lost, with
    /// a word in our own log.
    pub(super) fn append(&self, parameters: &str, meta_info: &str, now: Stamp) {
        let parameters = serde_json::Value::from(spaced(parameters)).to_string();
        let members = spaced(meta_info);
        let members = members.strip_prefix('{').unwrap_or_default();
        let line = format!("{{\"request_parameters\": {parameters}, {members}\n");
        let mut open = self.open.lock();
        if let Err(error) = self.write(&mut open, &line, now) {
            log::error!(
                "--export-metrics-to-file-dir {}: {error}; a line is lost",
                self.folder.display()
            );
            *open = None;
        }
    }

    fn write(&self, open: &mut Option<Hour>, line: &str, now: Stamp) -> std::io::Result<()> {
        let hour = now.utc().strftime("%Y%m%d_%H");
        let name = format!("sglang-request-metrics-{hour}.log");
        if open.as_ref().is_none_or(|open| open.name != name) {
            let path = self.folder.join(&name);
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            *open = Some(Hour { name, file });
        }
        match open {
            Some(hour) => hour.file.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

/// JSON as Python writes it: a space after `,` and `:`, and nothing but ASCII.
fn spaced(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 8);
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
        if !in_string && matches!(c, ',' | ':') {
            out.push(' ');
        }
        in_string ^= c == '"' && !escaped;
        escaped = in_string && c == '\\' && !escaped;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_spaced_outside_of_strings_only() {
        let json = r#"{"a":"b,c:\"d\\","e":[1,2.5],"ü":"😀"}"#;
        let python = r#"{"a": "b,c:\"d\\", "e": [1, 2.5], "\u00fc": "\ud83d\ude00"}"#;
        assert_eq!(spaced(json), python);
    }
}
