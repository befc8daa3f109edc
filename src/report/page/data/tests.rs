use super::*;
use crate::report::load::tests::*;

#[test]
fn counts_of_each_server_and_of_all_are_shown() {
    let servers = [("server-1", "h1:1"), ("server-2", "h2:1")];
    // Counts in series files of older runs are ignored.
    let older = SeriesRow {
        source: "records".to_owned(),
        metric: "unknown".to_owned(),
        value: 77.0,
        ..SeriesRow::default()
    };
    let times = [[0.0, 0.25, 0.75, 1.75], [0.5, 0.5, 0.5, 2.5]];
    let rows = servers.iter().zip(times).map(|((_, host), [arrival, sent, started, end])| {
        format!(
            "host={host}, outcome=ok, clock_state=offset, arrival_time={arrival}, router_send_time={sent}, queue_time_start={sent}, \
            queue_time_end={started}, finish_time={end}, end_time={end}"
        )
    });
    let mut run = Run::of_lines(rows).at_servers(&servers);
    run.series = vec![older];
    let report = RunReport::of(&run);
    let bucket = report.summary.all.over_time.as_ref().unwrap().bucket_s;
    let series = series(&report);
    let series = series.as_array().unwrap();
    // How long requests were there, together, and the middle of that.
    for (server, metric, seconds, middle) in [
        ("", "waiting", 0.25, 0.125),
        ("", "queued", 0.5, 0.5),
        ("server-1", "running", 1.0, 1.25),
        ("server-2", "running", 2.0, 1.5),
        ("", "running", 3.0, 4.25 / 3.0),
        ("", "concurrency", 3.75, 4.531 / 3.75),
    ] {
        let is_it = |of: &&Value| of["server"] == server && of["metric"] == metric;
        let of = series.iter().find(is_it).unwrap();
        let points: Vec<[f64; 2]> = serde_json::from_value(of["points"].clone()).unwrap();
        let there = points.iter().map(|[_, value]| value).sum::<f64>() * bucket;
        let at = points.iter().map(|[time, value]| time * value);
        let at = at.sum::<f64>() * bucket / there;
        let is_right = (there - seconds).abs() < 1e-3 && (at - middle).abs() <= bucket;
        assert!(is_right, "{metric} {server}: {there} {at}");
    }
    let is_older = series.iter().any(|of| of["metric"] == "unknown");
    assert!(!is_older, "{series:?}");
}

#[test]
fn thinning_keeps_every_peak_and_the_order() {
    let mut points: Vec<(f64, f64)> = (0..10_000).map(|t| (f64::from(t), 1.0)).collect();
    points[7_777].1 = 50.0;
    points[1_234].1 = -3.0;
    let kept = thinned(&points, 300);
    assert!(kept.len() <= 300, "{}", kept.len());
    assert!(kept.contains(&(7_777.0, 50.0)) && kept.contains(&(1_234.0, -3.0)));
    assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
}

#[test]
fn numbers_are_short_and_nothing_is_null() {
    assert_eq!(short(0.123_456_789), json!(0.123_457));
    assert_eq!(short(1_234_567.25), json!(1_234_567.0));
    assert_eq!(short(f64::NAN), Value::Null);
    assert_eq!(short(f64::INFINITY), Value::Null);
    assert_eq!(short(0.0), json!(0.0));
}
