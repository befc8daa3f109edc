use super::*;

/// All of a trace, at its own speed.
pub(in crate::traffic::workload) const WHOLE: Limits = Limits {
    count: usize::MAX,
    end: i64::MAX,
    kept: MAX_KEPT,
    speed: Some(1.0),
};

const MOONCAKE_LINES: &str = include_str!("../../../../tests/data/datasets/mooncake.jsonl");
const AZURE_2023: &str = include_str!("../../../../tests/data/datasets/azure-2023.csv");
const AZURE_2024: &str = include_str!("../../../../tests/data/datasets/azure-2024.csv");
const BURST: &str = include_str!("../../../../tests/data/datasets/burstgpt.csv");
const SESSIONS: &str = include_str!("../../../../tests/data/datasets/burstgpt-sessions.csv");

const MS: i64 = 1_000_000;

/// A trace of CSV at its own speed: the first `count` requests, or those before `end` nanoseconds.
fn read(text: &str, count: Option<usize>, end: Option<i64>) -> Dataset {
    let limits = Limits {
        count: count.unwrap_or(usize::MAX),
        end: end.unwrap_or(i64::MAX),
        ..WHOLE
    };
    super::read(text.as_bytes(), true, limits).unwrap()
}

/// Seconds, and lengths of prompt and response, of each request.
fn rows(trace: &Dataset) -> Vec<(f64, (u64, u64))> {
    let times = trace.times.iter().flat_map(|times| times.iter());
    let seconds = times.map(|at| *at as f64 / 1e9);
    let lengths = |one: &Arc<Entry>| (one.input.unwrap(), one.output.unwrap());
    let lengths = trace.entries.iter().map(lengths);
    seconds.zip(lengths).collect()
}

#[test]
fn each_format_gives_times_from_the_first_request_and_lengths() {
    for (text, seconds) in [
        (AZURE_2023, &[0.0, 1.5, 4.0000007][..]),
        (AZURE_2024, &[0.0, 0.25, 0.99007]),
        (BURST, &[0.0, 40.0, 113.0]),
        (SESSIONS, &[0.0, 40.25]),
    ] {
        let lengths = [(30, 4), (12, 9), (51, 1)];
        let sent = seconds.iter().copied().zip(lengths);
        assert_eq!(rows(&read(text, None, None)), Vec::from_iter(sent));
    }
}

#[test]
fn no_more_is_read_than_is_sent() {
    // The last line is invalid, and must not be read.
    let broken = AZURE_2023.to_owned() + "2023-11-17 00:02:00,1,1\nx,y,z\n";
    let azure = read(&broken, Some(2), None);
    assert_eq!(azure.entries.len(), 2);
    let azure = read(&broken, None, Some(1500 * MS));
    assert_eq!(rows(&azure), [(0.0, (30, 4))]);
    let azure = read(&broken, None, Some(1501 * MS));
    assert_eq!(azure.entries.len(), 2);
}

#[test]
fn a_duration_counts_from_the_first_request_that_is_sent() {
    let disorder = [(20, 5), (45, 5), (0, 5), (29, 5), (30, 5), (95, 5)];
    for (seconds, lines, times) in [
        // The first line has no response.
        (60, &[(0, 0), (100, 5), (101, 5)][..], &[0, 1][..]),
        (50, &[(0, 0), (30, 5), (61, 5)], &[0, 31]),
        // The first line is not the earliest: requests that its time let pass are left out again.
        (30, &disorder, &[0, 20, 29]),
    ] {
        let mut text = "Timestamp,Request tokens,Response tokens\n".to_owned();
        for (at, output) in lines {
            text += &format!("{at},9,{output}\n");
        }
        let trace = read(&text, None, Some(seconds * NANOS));
        let sent: Vec<i64> = rows(&trace).iter().map(|row| row.0 as i64).collect();
        assert_eq!(&sent[..], times);
    }
}

#[test]
fn a_trace_that_does_not_fit_into_memory_is_refused() {
    let read = |kept| {
        let limits = Limits { kept, ..WHOLE };
        super::read(MOONCAKE_LINES.as_bytes(), false, limits)
    };
    assert_eq!(read(4).unwrap().entries.len(), 4);
    let error = read(2).unwrap_err();
    let part = ", line 3: holds more than 2 requests: say how many with --num-prompts";
    assert!(error.starts_with(part), "{error}");
}
