//! What nobody saw, and what to switch on to see it.

use crate::report::load::TimeSpent;
use crate::report::reader::Run;
use crate::request::unseen::Unseen;

use super::{ENOUGH, Finding, Level, told};

/// What of the requests was not seen.
pub fn unseen(run: &Run, spent: &TimeSpent) -> Option<Finding> {
    if spent.requests < ENOUGH {
        return None;
    }
    // The run itself knew more of its answers than its rows tell.
    let by_summary = told(run, "/time_spent/unseen").and_then(|unseen| unseen.as_object());
    let notes: Vec<String> = match by_summary {
        Some(unseen) => {
            let known = unseen.iter().filter_map(|(name, requests)| {
                let sentence = Unseen::named(name)?.sentence();
                Some(match requests.as_u64()? {
                    requests if requests < spent.requests => {
                        format!("{sentence} (in {requests} of {} requests)", spent.requests)
                    }
                    _ => sentence,
                })
            });
            known.collect()
        }
        None => spent.unseen_notes(),
    };
    if notes.is_empty() {
        return None;
    }
    Some(Finding {
        kind: "unseen",
        level: Level::Note,
        title: "Not every moment could be seen".to_owned(),
        what: format!(
            "{}. Stages that could not be told apart are shown as one, hatched.",
            upper(&notes.join("; "))
        ),
        advice: String::new(),
    })
}

fn upper(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}", first.unwrap_or_default(), letters.as_str())
}
