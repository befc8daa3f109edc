use super::*;
use crate::request::timeline::ENGINE;

/// The stages that a row of all moments but these is counted in, milliseconds, as tenths.
fn stages_of(lacking: &[Moment], change: impl Fn(&mut Row)) -> Vec<(String, i64)> {
    let metrics = Metrics::new().unwrap();
    let mut row = row(Endpoint::Chat, Outcome::Ok);
    lacking
        .iter()
        .for_each(|moment| row.timeline.clear(*moment));
    change(&mut row);
    metrics.request_ended(&Counted::of(&rows(&[row])));
    let sums = shown(&metrics).into_iter().filter_map(|(name, sum)| {
        let rest = name.strip_prefix("queuescope_stage_duration_seconds_sum{stage=\"")?;
        Some((
            rest.split('"').next()?.to_owned(),
            (sum * 1e4).round() as i64,
        ))
    });
    sums.collect()
}

fn named(stages: &[(&str, i64)]) -> Vec<(String, i64)> {
    stages
        .iter()
        .map(|(name, tenths)| ((*name).to_owned(), *tenths))
        .collect()
}

const HOP: [Moment; 3] = [
    Moment::WorkerArrival,
    Moment::WorkerForwarded,
    Moment::WorkerFirstToken,
];

#[test]
fn the_stages_add_up_to_the_requests_time() {
    let tenths = |from: Moment, to: Moment| (to as i64 - from as i64) * 10;
    let whole = tenths(Moment::Arrival, Moment::Finish);
    let router = (
        "router_queue",
        tenths(Moment::Arrival, Moment::WorkerArrival),
    );
    let stall = ("client_stall", 5);
    let no_change = |_: &mut Row| {};
    let streamed = stages_of(&ENGINE, no_change);
    let server = tenths(Moment::WorkerArrival, Moment::WorkerFirstToken);
    let decode = ("decode", tenths(Moment::FirstToken, Moment::Finish) - 5);
    let expected = [
        stall,
        decode,
        router,
        (
            "router_return",
            tenths(Moment::WorkerFirstToken, Moment::FirstToken),
        ),
        ("server", server),
    ];
    assert_eq!(streamed, named(&expected));

    let tokens = [
        Moment::WorkerFirstToken,
        Moment::FirstToken,
        Moment::LastToken,
    ];
    let reply = stages_of(&[&ENGINE[..], &tokens].concat(), no_change);
    let server = tenths(Moment::WorkerArrival, Moment::Finish);
    assert_eq!(reply, named(&[stall, router, ("server", server - 5)]));

    // The engine told how long it was in the queue, and no more than that.
    let told = [Moment::QueueStart, Moment::QueueEnd, Moment::PrefillEnd];
    let retracted = |row: &mut Row| row.pure_queue_time = Some(MS);
    for (lacking, change) in [
        (&[][..], &no_change as &dyn Fn(&mut Row)),
        (&ENGINE, &no_change),
        (&tokens, &no_change),
        (&told, &retracted),
    ] {
        let stages = stages_of(lacking, change);
        assert_eq!(
            stages.iter().map(|(_, tenths)| tenths).sum::<i64>(),
            whole,
            "{stages:?}"
        );
    }
    assert!(stages_of(&told, retracted).contains(&("server_queue".into(), 10)));
}

#[test]
fn no_router_is_shown_where_none_is_seen() {
    let to_server = |row: &mut Row| row.timeline.upstream_is_server(true);
    let straight = stages_of(&HOP, to_server);
    let proxy = (Moment::Forwarded as i64 - Moment::Arrival as i64) * 10;
    assert!(straight.contains(&("proxy".into(), proxy)), "{straight:?}");
    let router = straight
        .iter()
        .filter(|(name, _)| name.starts_with("router"));
    assert_eq!(router.count(), 0, "{straight:?}");

    // A router, and nobody behind it: until the first token nothing is known.
    let unseen = stages_of(&[&HOP[..], &ENGINE].concat(), |_| {});
    let names: Vec<&str> = unseen.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["client_stall", "decode"]);
}

#[test]
fn a_stall_after_the_last_byte_was_read_is_none_of_decoding() {
    let stalled = stages_of(&[], |row| row.client_stall = Some(3000 * MS));
    let decode = (Moment::Finish as i64 - Moment::FirstToken as i64) * 10 - 5;
    assert!(stalled.contains(&("decode".into(), decode)), "{stalled:?}");
    assert!(stalled.contains(&("client_stall".into(), 30_000)));
}
