//! Files of lines, each with its number, and lines of JSON.

use std::io::{BufRead, BufReader, Read};

use serde::de::DeserializeOwned;

use crate::traffic::error::Error;

/// The file that is read, by the value of `--dataset-path`.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a>(pub &'a str);

impl Named<'_> {
    /// What is wrong with the file.
    pub fn wrong(self, what: &str) -> Error {
        Error::Usage(format!("--dataset-path {}{what}", self.0))
    }

    /// What is wrong with a line.
    pub fn wrong_line(self, number: usize, what: &str) -> Error {
        self.wrong(&format!(", line {number}: {what}"))
    }
}

/// The lines that are not blank, without their ends, with their numbers from 1; a longer one than `longest` bytes is cut.
pub fn lines(
    file: impl Read,
    named: Named<'_>,
    longest: u64,
) -> impl Iterator<Item = Result<(usize, String), Error>> {
    let mut file = BufReader::with_capacity(1 << 16, file);
    (1..)
        .map_while(move |number| {
            let mut text = String::new();
            match file.by_ref().take(longest).read_line(&mut text) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(cause) => return Some(Err(named.wrong_line(number, &cause.to_string()))),
            }
            text.truncate(text.trim_end().len());
            Some(Ok((number, text)))
        })
        .filter(|line| line.as_ref().map_or(true, |(_, text)| !text.is_empty()))
}

/// Reads JSON; else what is wrong with it, and where in it.
pub fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        match problem(error.inner()) {
            wrong if error.inner().is_data() && path != "." => format!("`{path}`: {wrong}"),
            wrong => wrong,
        }
    })?;
    json.end().map_err(|error| problem(&error))?;
    Ok(read)
}

/// What is wrong with JSON, without its place.
pub fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text
        .rsplit_once(" at line ")
        .map_or(&*text, |(what, _)| what);
    match error.is_data() {
        true => what.to_owned(),
        false => format!("is not JSON: {what}"),
    }
}
