use super::*;
use crate::request::sample::ms;
use crate::request::{
    ENGINE, Moment::FirstToken, Moment::LastToken, Moment::PrefillEnd, Moment::QueueEnd,
    Moment::QueueStart, Moment::WorkerArrival, Moment::WorkerFirstToken, Moment::WorkerForwarded,
};

/// The stages of a request, milliseconds, and their sum.
fn stages_of(row: Row) -> (String, i64) {
    let metrics = Metrics::new().unwrap();
    metrics.request_ended(&CountedRequest::of(&rows(&[row])));
    let sums = shown(&metrics).into_iter().filter_map(|(name, sum)| {
        let rest = name.strip_prefix("queuescope_stage_duration_seconds_sum{stage=\"")?;
        let (stage, ms) = (rest.split('"').next()?, (sum * 1e3).round() as i64);
        Some((format!("{stage} {ms}"), ms))
    });
    let (stages, sums): (Vec<String>, Vec<i64>) = sums.unzip();
    (stages.join(", "), sums.iter().sum())
}

const HOP: [Moment; 3] = [WorkerArrival, WorkerForwarded, WorkerFirstToken];
const QUEUE: [Moment; 3] = [QueueStart, QueueEnd, PrefillEnd];
const TOKENS: [Moment; 3] = [WorkerFirstToken, FirstToken, LastToken];

#[test]
fn the_stages_add_up_to_the_requests_time() {
    // The client stalled for 4 ms of decoding.
    let expected = "\
client_stall 4, decode 286, network 5, prefill 100, return 3, router_queue 3, router_return 7, server_queue 80, tokenize 10
client_stall 4, decode 286, router_queue 3, router_return 7, server 198
client_stall 4, router_queue 3, server 491
client_stall 4, decode 296, network 5, prefill 100, router_queue 3, server_queue 80, tokenize 10
client_stall 4, decode 286, network 5, return 3, router_queue 3, router_return 7, server 189, server_queue 1
client_stall 4, decode 286, network 7, prefill 100, proxy 1, return 10, server_queue 80, tokenize 10
client_stall 4, decode 286
client_stall 3000, decode 286, router_queue 3, router_return 7, server 198";
    type Change = fn(&mut Row);
    let as_it_is: Change = |_| ();
    let cases: [(&[&[Moment]], Change, i64); 8] = [
        (&[], as_it_is, 498),
        (&[&ENGINE], as_it_is, 498),
        (&[&ENGINE, &TOKENS], as_it_is, 498),
        (&[&TOKENS], as_it_is, 498),
        // The engine reported only the length of the queue time.
        (&[&QUEUE], |row| row.pure_queue_time = Some(ms(1)), 498),
        // Without a router, none is shown.
        (&[&HOP], |row| row.timeline.upstream_is_server(true), 498),
        // A router without hops: nothing is known until the first token.
        (&[&HOP, &ENGINE], as_it_is, 290),
        // A stall after the last byte was read is no part of decoding.
        (&[&ENGINE], |row| row.client_stall = Some(ms(3000)), 3494),
    ];
    for ((missing, change, sum), stages) in cases.into_iter().zip(expected.lines()) {
        let mut row = row(Endpoint::Chat, Outcome::Ok);
        for moment in missing.concat() {
            row.timeline.clear(moment);
        }
        change(&mut row);
        assert_eq!(stages_of(row), (stages.to_owned(), sum));
    }
}
