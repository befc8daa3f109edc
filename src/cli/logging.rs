//! What the process says on standard error: time, process, level, place and words in each line. Lines that come again
//! and again are counted, whoever writes them: a flood of clients must not become a flood of lines.

use std::collections::HashMap;
use std::io::Write;

use env_logger::{Builder, Env, Logger};
use log::{Level, Log, Metadata, Record};
use parking_lot::Mutex;

use crate::clock::{Clock, NANOS, Stamp};
use crate::serve::process::RELOAD;
use crate::terminal;

/// How lines are written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Format {
    /// For people: time, process, level, place and words
    Text,
    /// For machines: an object a line; the trace of a request is a field, trace_id
    Json,
}

/// What is written at each place of the source.
#[derive(Debug, Default)]
struct RateLimiter(HashMap<(&'static str, u32), Minute>);

/// The minute from a place's first line.
#[derive(Debug)]
struct Minute {
    since: Stamp,
    shown: u32,
    left_out: u64,
}

/// The logger of the process.
struct RateLimitedLogger {
    inner: Logger,
    clock: Clock,
    limiter: Mutex<RateLimiter>,
}

const MINUTE: i64 = 60 * NANOS;
/// Warnings and errors of one place that are shown in a minute.
const MAX_WARNINGS_PER_MINUTE: u32 = 10;
/// The same of news; a start says a line a worker.
const MAX_INFO_PER_MINUTE: u32 = 100;

/// Sends log lines to standard error: those of `filter`, unless `RUST_LOG` asks for others.
pub(super) fn start(filter: &str, format: Format) {
    let pid = std::process::id();
    let inner = Builder::from_env(Env::default().default_filter_or(filter))
        .format(move |out, record| {
            let (time, level, target) = (out.timestamp(), record.level(), record.target());
            let words = record.args().to_string();
            if let Format::Json = format {
                let line = json(&time.to_string(), pid, level, target, &words);
                return writeln!(out, "{line}");
            }
            // Clients and servers are quoted in some.
            let words = terminal::one_line(&words);
            writeln!(out, "[{time} {pid} {level:<5} {target}] {words}")
        })
        .build();
    let most = inner.filter();
    let logger = Box::new(RateLimitedLogger {
        inner,
        clock: Clock::system(),
        limiter: Mutex::default(),
    });
    // A second logger in the process is refused; the first one serves.
    if log::set_boxed_logger(logger).is_ok() {
        log::set_max_level(most);
    }
}

/// A line as an object.
fn json(time: &str, pid: u32, level: Level, target: &str, message: &str) -> serde_json::Value {
    let mut line = serde_json::json!({
        "time": time,
        "pid": pid,
        "level": level.as_str(),
        "target": target,
        "message": message,
    });
    // The trace that the line names.
    let named = message.rsplit_once("trace_id=");
    let trace = named.and_then(|(_, rest)| rest.get(..32));
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
            let mut told = Record::builder();
            let told = told.metadata(record.metadata().clone());
            let words = format_args!("and {left_out} more in the last minute, like the next one:");
            self.inner.log(&told.args(words).build());
        }
        self.inner.log(record);
    }

    /// At the end: how many were left out that nothing has told yet.
    fn flush(&self) {
        let left_out = self.limiter.lock().left_out();
        if left_out > 0 {
            let mut told = Record::builder();
            let told = told.level(Level::Warn).target(module_path!());
            let words = format_args!("and {left_out} more in the last minute, like those above");
            self.inner.log(&told.args(words).build());
        }
    }
}

impl RateLimiter {
    /// If a line is shown: how many of its place were left out in the minute before.
    fn admit(&mut self, record: &Record<'_>, now: Stamp) -> Option<u64> {
        let most = match record.level() {
            // A user waits for every line of a refused reload.
            _ if record.target() == RELOAD => return Some(0),
            Level::Error | Level::Warn => MAX_WARNINGS_PER_MINUTE,
            Level::Info => MAX_INFO_PER_MINUTE,
            // Asked for.
            Level::Debug | Level::Trace => return Some(0),
        };
        let place = (
            record.module_path_static().unwrap_or_default(),
            record.line().unwrap_or_default(),
        );
        let new = || Minute {
            since: now,
            shown: 0,
            left_out: 0,
        };
        let minute = self.0.entry(place).or_insert_with(new);
        let before = match now.nanos_since(minute.since) {
            ..MINUTE => 0,
            _ => std::mem::replace(minute, new()).left_out,
        };
        if minute.shown == most {
            minute.left_out += 1;
            return None;
        }
        minute.shown += 1;
        Some(before)
    }

    /// Of all places; they begin anew.
    fn left_out(&mut self) -> u64 {
        let all = self.0.drain();
        all.map(|(_, minute)| minute.left_out).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a line of the place `line`.
    fn say(limiter: &mut RateLimiter, level: Level, line: u32, now: i64) -> Option<u64> {
        let mut record = Record::builder();
        let record = record.level(level).target("t").line(Some(line));
        limiter.admit(&record.build(), Stamp::from_nanos(now * NANOS))
    }

    #[test]
    fn of_a_place_ten_lines_a_minute_are_shown_and_the_others_counted() {
        let mut all = RateLimiter::default();
        let mut warn = |line, now| say(&mut all, Level::Warn, line, now);
        let shown = (0..51).filter(|_| warn(1, 0).is_some()).count();
        assert_eq!(shown, 10);
        assert_eq!(warn(2, 1), Some(0), "another place");
        assert_eq!(warn(1, 59), None);
        assert_eq!(warn(2, 60), Some(0));
        assert_eq!(warn(1, 60), Some(42));
        assert_eq!(warn(1, 61), Some(0), "told once");
        // At the end all that is untold.
        assert!((0..9).filter(|_| warn(1, 62).is_none()).count() == 1);
        assert_eq!((all.left_out(), all.left_out()), (1, 0));
    }

    #[test]
    fn news_are_many_at_a_start_and_what_was_asked_for_is_all_shown() {
        let mut all = RateLimiter::default();
        let mut shown = |level| {
            (0..1000)
                .filter(|_| say(&mut all, level, 1, 0).is_some())
                .count()
        };
        assert_eq!((shown(Level::Info), shown(Level::Debug)), (100, 1000));
        let fault = Record::builder().level(Level::Error).target(RELOAD).build();
        assert!((0..1000).all(|_| all.admit(&fault, Stamp::from_nanos(0)) == Some(0)));
    }

    #[test]
    fn a_line_in_json_has_the_trace_as_a_field() {
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
