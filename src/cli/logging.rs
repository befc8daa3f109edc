//! The log on standard error. Lines of the same place in the source are limited to some a minute and the others counted, so that a flood
//! of clients does not become a flood of lines.

use std::collections::HashMap;
use std::io::Write;

use env_logger::{Builder, Env, Logger};
use log::{Level, Log, Metadata, Record};
use parking_lot::Mutex;

use crate::clock::{Clock, NANOS, Stamp};
use crate::terminal;

/// How lines are written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Format {
    /// For people: time, process, level, place and words
    Text,
    /// For machines: an object a line; the trace of a request is a field, trace_id
    Json,
}

/// What each place of the source, by module and line, logged in the current minute.
#[derive(Debug, Default)]
struct RateLimiter {
    minute: i64,
    lines: HashMap<(Option<&'static str>, Option<u32>), u32>,
    /// The lines that were left out, and of which no line has told.
    left_out: u64,
}

/// The process's logger.
struct RateLimitedLogger {
    inner: Logger,
    clock: Clock,
    limiter: Mutex<RateLimiter>,
}

const MINUTE: i64 = 60 * NANOS;
/// The maximum number of warnings and errors per place.
const MAX_WARNINGS_PER_MINUTE: u32 = 10;
/// The maximum number of information lines per place. A start logs one per worker.
const MAX_INFO_PER_MINUTE: u32 = 100;

/// Starts logging to standard error. `RUST_LOG` overrides `filter`.
pub(super) fn start(filter: &str, format: Format) {
    let pid = std::process::id();
    let inner = Builder::from_env(Env::default().default_filter_or(filter))
        .format(move |out, record| {
            let (time, level, target) = (out.timestamp(), record.level(), record.target());
            let message = record.args().to_string();
            if let Format::Json = format {
                let line = json(&time.to_string(), pid, level, target, &message);
                return writeln!(out, "{line}");
            }
            // A message may quote texts of clients and servers.
            let message = terminal::one_line(&message);
            writeln!(out, "[{time} {pid} {level:<5} {target}] {message}")
        })
        .build();
    let max_level = inner.filter();
    let logger = Box::new(RateLimitedLogger {
        inner,
        clock: Clock::system(),
        limiter: Mutex::default(),
    });
    // Fails if there is a logger already, which stays.
    if log::set_boxed_logger(logger).is_ok() {
        log::set_max_level(max_level);
    }
}

/// Formats a line as a JSON object.
fn json(time: &str, pid: u32, level: Level, target: &str, message: &str) -> serde_json::Value {
    let mut line = serde_json::json!({
        "time": time,
        "pid": pid,
        "level": level.as_str(),
        "target": target,
        "message": message,
    });
    // The trace that the message names.
    let rest = message.rsplit_once("trace_id=");
    let trace = rest.and_then(|(_, rest)| rest.get(..32));
    if let Some(trace) = trace.filter(|id| id.bytes().all(|c| c.is_ascii_hexdigit())) {
        line["trace_id"] = trace.into();
    }
    line
}

impl Log for RateLimitedLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.inner.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.inner.matches(record) {
            return;
        }
        let admitted = self.limiter.lock().admit(record, self.clock.now());
        let Some(left_out) = admitted else { return };
        if left_out > 0 {
            let message = format_args!("and {left_out} more like those above");
            let mut note = Record::builder();
            let note = note.metadata(record.metadata().clone()).args(message);
            self.inner.log(&note.build());
        }
        self.inner.log(record);
    }

    fn flush(&self) {}
}

impl RateLimiter {
    /// Returns how many lines were left out since the last one that was not; `None` if this line is left out, too.
    fn admit(&mut self, record: &Record<'_>, now: Stamp) -> Option<u64> {
        let max = match record.level() {
            Level::Error | Level::Warn => MAX_WARNINGS_PER_MINUTE,
            Level::Info => MAX_INFO_PER_MINUTE,
            // Only logged if RUST_LOG asks for them.
            Level::Debug | Level::Trace => return Some(0),
        };
        let place = (record.module_path_static(), record.line());
        let minute = now.nanos() / MINUTE;
        if minute != std::mem::replace(&mut self.minute, minute) {
            self.lines.clear();
        }
        let lines = self.lines.entry(place).or_default();
        *lines += 1;
        if *lines > max {
            self.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Admits a line of the place `line` at `now` seconds.
    fn admit(limiter: &mut RateLimiter, level: Level, line: u32, now: i64) -> Option<u64> {
        let mut record = Record::builder();
        let record = record.level(level).target("t").line(Some(line));
        limiter.admit(&record.build(), Stamp::from_nanos(now * NANOS))
    }

    #[test]
    fn ten_warnings_a_minute_of_a_place_are_shown_and_the_others_counted() {
        let mut all = RateLimiter::default();
        let mut warn = |line, now| admit(&mut all, Level::Warn, line, now);
        let shown = (0..51).filter(|_| warn(1, 0).is_some()).count();
        assert_eq!(shown, 10);
        assert_eq!(warn(2, 1), Some(41), "another place");
        assert_eq!(warn(1, 59), None);
        assert_eq!(warn(2, 60), Some(1));
        assert_eq!(warn(1, 60), Some(0), "reported once");
    }

    #[test]
    fn many_information_lines_and_all_debug_lines_are_shown() {
        let mut all = RateLimiter::default();
        let mut shown = |level| {
            (0..1000)
                .filter(|_| admit(&mut all, level, 1, 0).is_some())
                .count()
        };
        assert_eq!((shown(Level::Info), shown(Level::Debug)), (100, 1000));
    }

    #[test]
    fn a_json_line_has_the_trace_as_a_field() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (message, expected) in [
            (format!("it \"failed\"\n; trace_id={trace}"), Some(trace)),
            ("trace_id=short".to_owned(), None),
            ("none".to_owned(), None),
        ] {
            let line = json("now", 1, Level::Warn, "t", &message).to_string();
            let read: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(read["message"], message.as_str());
            assert_eq!(read.get("trace_id").and_then(|id| id.as_str()), expected);
        }
    }
}
