//! What the process says on standard error: time, process, level, place and words in each line. Lines that come again
//! and again are counted, whoever writes them: a flood of clients must not become a flood of lines.

use std::collections::HashMap;
use std::io::Write;
use std::sync::OnceLock;
use std::time::Duration;

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

/// A kind of line: where in the source it is written.
type Kind = (&'static str, u32);

/// Lets the first lines of a kind in a minute pass, and counts the others.
#[derive(Debug, Default)]
struct Repeated(HashMap<Kind, Minute>);

/// The lines of one kind, from the first.
#[derive(Debug)]
struct Minute {
    since: Stamp,
    lines: u32,
    /// The first line that was left out, so that the count says of what.
    left_out: Option<LeftOut>,
}

/// Lines of one kind that nobody saw.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeftOut {
    count: u64,
    level: Level,
    target: String,
    like: String,
}

/// The logger of the process.
struct Limited {
    inner: Logger,
    clock: Clock,
    repeated: Mutex<Repeated>,
}

const MINUTE: i64 = 60 * NANOS;
/// Warnings and errors of one kind that are shown in a minute.
const WARNINGS: u32 = 10;
/// The same of news; a start says a line a worker.
const NEWS: u32 = 100;
/// How often it is looked whether there is something to count up.
const STEP: Duration = Duration::from_secs(5);
/// Characters of a line that stands for those left out.
const LIKE: usize = 160;

static LOGGER: OnceLock<Limited> = OnceLock::new();

/// Sends log lines to standard error: those of `news`, unless `RUST_LOG` asks for others.
pub(super) fn start(news: &str, format: Format) {
    let pid = std::process::id();
    let inner = Builder::from_env(Env::default().default_filter_or(news))
        .format(move |out, record| {
            let (time, level, target) = (out.timestamp(), record.level(), record.target());
            match format {
                Format::Text => {
                    // Clients and servers are quoted in some.
                    let words = record.args().to_string();
                    let words = terminal::one_line(&words);
                    writeln!(out, "[{time} {pid} {level:<5} {target}] {words}")
                }
                Format::Json => {
                    let message = record.args().to_string();
                    let line = json(&time.to_string(), pid, level, target, &message);
                    writeln!(out, "{line}")
                }
            }
        })
        .build();
    let most = inner.filter();
    let logger = LOGGER.get_or_init(|| Limited {
        inner,
        clock: Clock::system(),
        repeated: Mutex::default(),
    });
    // A second logger in the process is refused; the first one serves.
    if log::set_logger(logger).is_err() {
        return;
    }
    log::set_max_level(most);
    let counts = || {
        loop {
            std::thread::sleep(STEP);
            logger.count_up(logger.clock.now(), MINUTE);
        }
    };
    // Without it, counts come with the next line of their kind, and at the end.
    let _ = std::thread::Builder::new().name("log".into()).spawn(counts);
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
    if let (Some(trace), Some(line)) = (trace_of(message), line.as_object_mut()) {
        line.insert("trace_id".to_owned(), trace.into());
    }
    line
}

/// The trace that a line names.
fn trace_of(message: &str) -> Option<&str> {
    let (_, rest) = message.rsplit_once(TRACE)?;
    let id = rest.get(..32)?;
    id.bytes().all(|c| c.is_ascii_hexdigit()).then_some(id)
}

/// What stands before a trace's id in a line.
const TRACE: &str = "trace_id=";

impl Limited {
    /// Tells what was left out in minutes that are at least so many nanoseconds old.
    fn count_up(&self, now: Stamp, age: i64) {
        let over = self.repeated.lock().over(now, age);
        for left_out in over {
            self.tell(&left_out);
        }
    }

    fn tell(&self, left_out: &LeftOut) {
        let LeftOut {
            count,
            level,
            target,
            like,
        } = left_out;
        self.inner.log(
            &Record::builder()
                .level(*level)
                .target(target)
                .args(format_args!(
                    "and {count} more in the last minute, like: {like}"
                ))
                .build(),
        );
    }
}

impl Log for Limited {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.inner.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.inner.matches(record) {
            return;
        }
        let (earlier, shown) = self.repeated.lock().admit(record, self.clock.now());
        if let Some(earlier) = earlier {
            self.tell(&earlier);
        }
        if shown {
            self.inner.log(record);
        }
    }

    /// At the end: all that was left out.
    fn flush(&self) {
        self.count_up(self.clock.now(), 0);
    }
}

impl Repeated {
    /// Whether a line is shown; and what its kind left out in the minute that is over.
    fn admit(&mut self, record: &Record<'_>, now: Stamp) -> (Option<LeftOut>, bool) {
        let level = record.level();
        let most = match level {
            Level::Error | Level::Warn => WARNINGS,
            Level::Info => NEWS,
            // Asked for.
            Level::Debug | Level::Trace => return (None, true),
        };
        if record.target() == RELOAD {
            // Asked for, too.
            return (None, true);
        }
        let place = record.module_path_static().unwrap_or_default();
        let kind = (place, record.line().unwrap_or_default());
        let new = || Minute {
            since: now,
            lines: 0,
            left_out: None,
        };
        let minute = self.0.entry(kind).or_insert_with(new);
        let is_over = now.nanos_since(minute.since) >= MINUTE;
        let earlier = is_over.then(|| std::mem::replace(minute, new()).left_out);
        minute.lines = minute.lines.saturating_add(1);
        let shown = minute.lines <= most;
        if !shown {
            let first = || LeftOut {
                count: 0,
                level,
                target: record.target().to_owned(),
                like: record.args().to_string().chars().take(LIKE).collect(),
            };
            minute.left_out.get_or_insert_with(first).count += 1;
        }
        (earlier.flatten(), shown)
    }

    /// Forgets the minutes that are at least so many nanoseconds old; gives what was left out in them.
    fn over(&mut self, now: Stamp, age: i64) -> Vec<LeftOut> {
        let over = self
            .0
            .extract_if(|_, minute| now.nanos_since(minute.since) >= age);
        over.filter_map(|(_, minute)| minute.left_out).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Stamp {
        Stamp::from_nanos(seconds * NANOS)
    }

    /// A line of the kind `line`; whether it is shown, and how many were left out before.
    fn say(repeated: &mut Repeated, level: Level, line: u32, now: i64) -> (bool, u64) {
        let (earlier, shown) = repeated.admit(
            &Record::builder()
                .level(level)
                .target("t")
                .module_path_static(Some("m"))
                .line(Some(line))
                .args(format_args!("a client at {now}"))
                .build(),
            at(now),
        );
        (shown, earlier.map_or(0, |earlier| earlier.count))
    }

    #[test]
    fn of_a_kind_ten_lines_a_minute_are_shown_and_the_others_counted() {
        let mut all = Repeated::default();
        let mut warn = |line, now| say(&mut all, Level::Warn, line, now);
        let shown = (0..51).filter(|_| warn(1, 0).0).count();
        assert_eq!(shown, 10);
        assert_eq!(warn(2, 1), (true, 0), "another kind");
        assert_eq!(warn(1, 59), (false, 0));
        assert_eq!(warn(1, 60), (true, 42));
        assert_eq!(warn(1, 61), (true, 0), "told once");
    }

    #[test]
    fn what_was_left_out_is_told_though_no_further_line_comes() {
        let mut all = Repeated::default();
        for now in 0..30 {
            say(&mut all, Level::Error, 1, now);
        }
        say(&mut all, Level::Warn, 2, 0);
        assert_eq!(all.over(at(59), MINUTE), []);
        let over = all.over(at(60), MINUTE);
        let like = "a client at 10".to_owned();
        let expected = LeftOut {
            count: 20,
            level: Level::Error,
            target: "t".into(),
            like,
        };
        assert_eq!(over, [expected]);
        assert!(all.0.is_empty());
        for now in 0..12 {
            say(&mut all, Level::Warn, 1, now);
        }
        assert_eq!(all.over(at(12), 0).len(), 1, "at the end all is told");
    }

    #[test]
    fn news_are_many_at_a_start_and_what_was_asked_for_is_all_shown() {
        let mut all = Repeated::default();
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

    #[test]
    fn a_long_line_stands_for_others_with_its_beginning() {
        let mut all = Repeated::default();
        let long = "ä".repeat(10_000);
        for _ in 0..20 {
            all.admit(
                &Record::builder()
                    .level(Level::Warn)
                    .args(format_args!("{long}"))
                    .build(),
                at(0),
            );
        }
        assert_eq!(all.over(at(0), 0)[0].like.chars().count(), LIKE);
    }
}
