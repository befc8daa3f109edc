//! What the process says on standard error: time, process, level, place and words in each line. Lines that come again
//! and again are counted, whoever writes them: a flood of clients must not become a flood of lines.

use std::collections::HashMap;
use std::io::Write;
use std::sync::OnceLock;

use env_logger::{Builder, Env, Logger};
use log::{Level, Log, Metadata, Record};
use parking_lot::Mutex;

use crate::clock::{Clock, NANOS, Stamp};
use crate::serve::process::RELOAD;
use crate::terminal;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people: time, process, level, place and words
    #[default]
    Text,
    /// For machines: an object a line; the trace of a request is a field, trace_id
    Json,
}

/// What is written at each place of the source, in the minute from its first line.
#[derive(Debug, Default)]
struct RateLimiter(HashMap<(&'static str, u32), Minute>);

#[derive(Debug)]
struct Minute {
    since: Stamp,
    lines: u32,
    suppressed: u64,
    /// The first line that was left out: its level, target and words.
    like: Option<(Level, String, String)>,
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
/// Characters of a line that stands for those left out.
const LIKE: usize = 160;

static LOGGER: OnceLock<RateLimitedLogger> = OnceLock::new();

/// Sends log lines to standard error: those of `filter`, unless `RUST_LOG` asks for others.
pub(super) fn start(filter: &str, format: Format) {
    let pid = std::process::id();
    let inner = Builder::from_env(Env::default().default_filter_or(filter))
        .format(move |out, record| {
            let (time, level, target) = (out.timestamp(), record.level(), record.target());
            let words = record.args().to_string();
            match format {
                // Clients and servers are quoted in some.
                Format::Text => {
                    let words = terminal::one_line(&words);
                    writeln!(out, "[{time} {pid} {level:<5} {target}] {words}")
                }
                Format::Json => writeln!(
                    out,
                    "{}",
                    json(&time.to_string(), pid, level, target, &words)
                ),
            }
        })
        .build();
    let most = inner.filter();
    let logger = LOGGER.get_or_init(|| RateLimitedLogger {
        inner,
        clock: Clock::system(),
        limiter: Mutex::default(),
    });
    // A second logger in the process is refused; the first one serves.
    if log::set_logger(logger).is_ok() {
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

impl RateLimitedLogger {
    fn tell(&self, over: Vec<Minute>) {
        for minute in over {
            let (more, mut line) = (minute.suppressed, Record::builder());
            let Some((level, target, like)) = minute.like else {
                continue;
            };
            let words = format_args!("and {more} more in the last minute, like: {like}");
            let line = line.level(level).target(&target).args(words).build();
            self.inner.log(&line);
        }
    }
}

impl Log for RateLimitedLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.inner.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.inner.matches(record) {
            return;
        }
        let (over, shown) = self.limiter.lock().admit(record, self.clock.now());
        self.tell(over);
        if shown {
            self.inner.log(record);
        }
    }

    /// At the end: all that was left out.
    fn flush(&self) {
        let over = self.limiter.lock().over(self.clock.now(), 0);
        self.tell(over);
    }
}

impl RateLimiter {
    /// Whether a line is shown; and the minutes that are over, of any place.
    fn admit(&mut self, record: &Record<'_>, now: Stamp) -> (Vec<Minute>, bool) {
        let over = self.over(now, MINUTE);
        let level = record.level();
        let most = match level {
            // A user waits for every line of a refused reload.
            _ if record.target() == RELOAD => return (over, true),
            Level::Error | Level::Warn => MAX_WARNINGS_PER_MINUTE,
            Level::Info => MAX_INFO_PER_MINUTE,
            // Asked for.
            Level::Debug | Level::Trace => return (over, true),
        };
        let place = (
            record.module_path_static().unwrap_or_default(),
            record.line().unwrap_or_default(),
        );
        let new = || Minute {
            since: now,
            lines: 0,
            suppressed: 0,
            like: None,
        };
        let minute = self.0.entry(place).or_insert_with(new);
        minute.lines = minute.lines.saturating_add(1);
        let shown = minute.lines <= most;
        if !shown {
            minute.suppressed += 1;
            let like = || record.args().to_string().chars().take(LIKE).collect();
            minute
                .like
                .get_or_insert_with(|| (level, record.target().to_owned(), like()));
        }
        (over, shown)
    }

    /// Forgets the minutes that are at least so many nanoseconds old.
    fn over(&mut self, now: Stamp, age: i64) -> Vec<Minute> {
        let over = self
            .0
            .extract_if(|_, minute| now.nanos_since(minute.since) >= age);
        over.map(|(_, minute)| minute).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Stamp {
        Stamp::from_nanos(seconds * NANOS)
    }

    /// A line of the place `line`; whether it is shown, and how many were left out in minutes that are over.
    fn say(limiter: &mut RateLimiter, level: Level, line: u32, now: i64) -> (bool, u64) {
        let (over, shown) = limiter.admit(
            &Record::builder()
                .level(level)
                .target("t")
                .module_path_static(Some("m"))
                .line(Some(line))
                .args(format_args!("a client at {now}"))
                .build(),
            at(now),
        );
        (shown, over.iter().map(|minute| minute.suppressed).sum())
    }

    #[test]
    fn of_a_place_ten_lines_a_minute_are_shown_and_the_others_counted() {
        let mut all = RateLimiter::default();
        let mut warn = |line, now| say(&mut all, Level::Warn, line, now);
        let shown = (0..51).filter(|_| warn(1, 0).0).count();
        assert_eq!(shown, 10);
        assert_eq!(warn(2, 1), (true, 0), "another place");
        assert_eq!(warn(1, 59), (false, 0));
        // Whatever comes next tells it.
        assert_eq!(warn(2, 60), (true, 42));
        assert_eq!(warn(1, 61), (true, 0), "told once");
    }

    #[test]
    fn at_the_end_all_is_told_with_the_beginning_of_a_line() {
        let mut all = RateLimiter::default();
        let long = "ä".repeat(10_000);
        for _ in 0..30 {
            let args = format_args!("{long}");
            all.admit(
                &Record::builder()
                    .level(Level::Error)
                    .target("t")
                    .args(args)
                    .build(),
                at(0),
            );
        }
        assert!(all.over(at(59), MINUTE).is_empty());
        let over = all.over(at(0), 0);
        let (level, target, like) = over[0].like.clone().unwrap();
        assert_eq!(
            (over[0].suppressed, level, &*target),
            (20, Level::Error, "t")
        );
        assert_eq!(like.chars().count(), LIKE);
        assert!(all.over(at(0), 0).is_empty());
    }

    #[test]
    fn news_are_many_at_a_start_and_what_was_asked_for_is_all_shown() {
        let mut all = RateLimiter::default();
        let mut shown = |level| (0..1000).filter(|_| say(&mut all, level, 1, 0).0).count();
        assert_eq!((shown(Level::Info), shown(Level::Debug)), (100, 1000));
        let fault = Record::builder().level(Level::Error).target(RELOAD).build();
        assert!((0..1000).all(|_| all.admit(&fault, at(0)).1));
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
