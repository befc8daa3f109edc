use super::*;
use crate::request::outcome::Outcome;
use crate::request::sample::{Sample, ms};
use crate::request::timeline::ENGINE;

/// Returns the names of impossible values, and their kinds.
fn found(row: &Row) -> (String, Vec<&'static str>) {
    let found = Impossible::of(row);
    let named = found.named(row).unwrap_or_default();
    (named, found.kinds().collect())
}

fn left(row: &Row) -> Row {
    without_impossible(std::slice::from_ref(row))[0].clone()
}

/// The server reported how long the sequence was in its queue, and nothing else.
fn queued(nanos: i64) -> Sample {
    let untimed = Sample::whole().without(&ENGINE);
    untimed.with(|row| row.pure_queue_time = Some(nanos))
}

/// All moments of the server are this much later.
fn later(by: i64) -> Sample {
    let ours = ENGINE.into_iter().zip([10, 20, 100, 199, 200, 495]);
    ours.fold(Sample::whole(), |sample, (moment, n)| {
        sample.at(moment, n + by)
    })
}

#[test]
fn impossible_times_are_named_and_left_out_with_what_follows_from_them() {
    // Of 499 ms, with 200 ppm that clocks may run apart.
    let longest = ms(499) + 104_800;
    let whole = Sample::whole;
    let alone = whole().engine_unknown().without(&[Moment::ServerFinish]);
    let left_by_client = queued(ms(60_000)).ended(Outcome::ClientAbort, "");
    let samples = [
        whole(),
        whole().at(Moment::QueueStart, -60_000),
        whole().at(Moment::QueueEnd, 15),
        queued(ms(60_000)),
        queued(longest),
        queued(longest + 1),
        // On a clock that does not compare.
        alone.at(Moment::ServerFirstToken, 70_000),
        // A server may go on after its client left.
        left_by_client.with(|row| row.timing_source = Some(TimingSource::Trace)),
        // A network time beyond its clocks' errors removes only what needs both clocks.
        later(-7),
        later(1000),
    ];
    // The milliseconds left in the server queue and on the way to the server; the kinds left out; the names.
    let expected = "\
[Some(80), Some(5)]
[None, None] times queue_start<server_created;pure_queue_time>elapsed;tokenize_time<0
[None, None] times queue_end<queue_start;pure_queue_time<0
[None, None] times pure_queue_time>elapsed
[Some(499), None]
[None, None] times pure_queue_time>elapsed
[None, None] times queue_time_in_server>elapsed;prefill_time>elapsed
[Some(60000), None]
[Some(80), None] clocks network_time<0
[Some(80), None] clocks network_time>elapsed;server_queue_wait>elapsed;ttft>elapsed;return_time<0";
    let shown = samples.map(|sample| {
        let row = sample.row();
        let (named, kinds) = found(&row);
        let left = left(&row);
        assert_eq!(found(&left), (String::new(), Vec::new()), "{named}");
        assert_eq!(left.total_latency, Some(ms(498)), "{named}");
        let of_left = [left.pure_queue_time, left.timeline.nanos(Period::NETWORK)];
        let of_left = of_left.map(|nanos| nanos.map(|nanos| nanos / ms(1)));
        let line = format!("{of_left:?} {} {named}", kinds.join(" "));
        line.trim_end().to_owned()
    });
    assert_eq!(shown.join("\n"), expected);
    let row = whole().at(Moment::QueueStart, -60_000).row();
    assert_eq!(row.pure_queue_time, Some(ms(60_100)), "as reported");
}

#[test]
fn impossible_tokens_are_named_and_left_out() {
    const FEW: &str = "actual_output_tokens<token_chunks";
    const MANY: &str = "tokens>100000000";
    type Change = fn(&mut Row);
    let of_all: Change = |row| {
        (row.actual_output_tokens, row.token_count_source) = (None, None);
        row.internal.usage_completion_tokens = Some(MAX_TOKENS + 1);
    };
    let none_requested: Change = |row| {
        (row.actual_output_tokens, row.expected_output_length) = (Some(0), Some(0));
        row.token_chunks = Some(1);
    };
    let many_of_prompt: Change = |row| row.actual_prompt_tokens = Some(u64::MAX);
    let cases: [(Change, &str); 5] = [
        (|row| row.actual_output_tokens = Some(0), FEW),
        (none_requested, ""),
        (|row| row.actual_output_tokens = Some(1 << 60), MANY),
        (of_all, MANY),
        (many_of_prompt, MANY),
    ];
    for (change, name) in cases {
        let sample = Sample::whole().with(|row| row.cached_tokens = Some(4));
        let row = sample.with(change).row();
        let kinds: &[&str] = if name.is_empty() { &[] } else { &["tokens"] };
        assert_eq!(found(&row), (name.to_owned(), kinds.to_vec()));
        let left = left(&row);
        assert_eq!(found(&left).0, "", "{name}");
        let (output, prompt) = (left.actual_output_tokens, left.actual_prompt_tokens);
        let counts = [output, prompt, left.cached_tokens];
        let gone = counts.iter().filter(|count| count.is_none()).count();
        assert_eq!(gone, 3 * kinds.len(), "{name}");
    }
}
