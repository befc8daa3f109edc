use super::*;
use crate::clock::{NANOS, Stamp};
use crate::request::sample::rows;
use crate::request::{Endpoint, Moment, Outcome, Row, Side};

/// Resolves with these variables, whose common prefix may be left out.
fn resolved(given: &Otlp, env: &str) -> Result<Option<ExportSettings>, String> {
    let env = |name: &str| {
        let name = name.strip_prefix("OTEL_EXPORTER_OTLP_").unwrap_or(name);
        let mut pairs = env.split(';').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| key.trim() == name);
        found.map(|(_, value)| value.trim().to_owned())
    };
    let resolved = ExportSettings::resolve(given, "queuescope", &env);
    resolved.map_err(|all| {
        let told = all
            .iter()
            .map(|(name, problem)| format!("{name}: {problem}"));
        told.collect::<Vec<_>>().join("\n")
    })
}

/// The same, which must be right and name a collector.
pub(in crate::telemetry::otlp) fn of(given: &Otlp, env: &str) -> ExportSettings {
    resolved(given, env).unwrap().unwrap()
}

pub(in crate::telemetry::otlp) fn at(endpoint: &str) -> Otlp {
    Otlp {
        endpoint: Some(endpoint.into()).filter(|url: &String| !url.is_empty()),
        ..Otlp::default()
    }
}

/// The given endpoint, the variables, and the target or the beginning of the error message.
const CASES: &str = "
 | | none
 | ENDPOINT=  | none
http://c:4317 | | http://c:4317 by grpc
http://c:4317/v1/traces/ | | http://c:4317 by grpc
http://c:4318 | | http://c:4318/v1/traces by http/protobuf
http://c:4318/ | | http://c:4318/v1/traces by http/protobuf
http://c/own/path | | http://c/own/path by http/protobuf
http://c:9 | PROTOCOL=grpc | http://c:9 by grpc
 | ENDPOINT=http://c/base | http://c/base/v1/traces by http/protobuf
 | ENDPOINT=http://a; TRACES_ENDPOINT=http://c/x | http://c/x by http/protobuf
http://c/x | TRACES_ENDPOINT=http://a | http://c/x by http/protobuf
 | ENDPOINT=http://c:4317; TRACES_PROTOCOL=http/protobuf; PROTOCOL=grpc | http://c:4317/v1/traces by http/protobuf

http://c:4317 | OTEL_SDK_DISABLED=True | http://c:4317 by grpc
 | ENDPOINT=http://c:4317; OTEL_SDK_DISABLED=True | none
 | ENDPOINT=http://c:4317; OTEL_SDK_DISABLED=false | http://c:4317 by grpc
 | PROTOCOL=http/json | none
 | ENDPOINT=c:4317 | http://c:4317 by grpc

ftp://c | | endpoint: must be http:// or https://
nonsense | | endpoint: must be http:// or https:// with a host
c:4317 | | endpoint: must be http:// or https:// with a host
 | ENDPOINT=nonsense | OTEL_EXPORTER_OTLP_ENDPOINT: must be http:// or https:// with a host
 | TRACES_ENDPOINT=http:/c | OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be http:// or https:// with a host
 | ENDPOINT=c:port | OTEL_EXPORTER_OTLP_ENDPOINT: must be http:// or https:// with a host
http://c:port | | endpoint: must be http:// or https://
http://key@c | | endpoint: must be http:// or https://
http:// | | endpoint: must be http:// or https:// with a host
http://c/?key=secret | | endpoint: must be http:// or https:// with a host and no query
http://c | PROTOCOL=http/json | OTEL_EXPORTER_OTLP_PROTOCOL: must be one of grpc, http/protobuf
http://c | HEADERS=secret | OTEL_EXPORTER_OTLP_HEADERS: must be like
";

#[test]
fn the_config_overrides_the_environment() {
    for case in CASES.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = case.split('|').map(str::trim).collect();
        let found = match resolved(&at(parts[0]), parts[1]) {
            Ok(settings) => settings.map_or_else(|| "none".to_owned(), |to| to.target()),
            Err(wrong) => wrong,
        };
        let has_prefix = parts[2].contains(": ") && found.starts_with(parts[2]);
        assert!(has_prefix || found == parts[2], "{case}: {found}");
        assert!(!found.contains("secret"), "{case}: {found}");
    }
    // A variable that is overridden is not even parsed.
    let given = Otlp {
        protocol: Some(Protocol::Grpc),
        ..at("http://c")
    };
    assert_eq!(of(&given, "PROTOCOL=x").protocol, Protocol::Grpc);
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let given = Otlp {
        headers_file: Some("/nowhere/headers".into()),
        ..Otlp::default()
    };
    let wrong = resolved(&given, "").unwrap_err();
    assert!(wrong.starts_with("headers_file: "), "{wrong}");
    let env = "ENDPOINT=https://key@c; PROTOCOL=http/json; TRACES_HEADERS=secret";
    let wrong = resolved(&given, env).unwrap_err();
    let names = wrong
        .lines()
        .filter_map(|one| Some(one.split_once(": ")?.0));
    assert!(
        names.eq([
            "headers_file",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        ]),
        "{wrong}"
    );
    // Of an endpoint that is right, the certificates are looked for, too.
    let given = Otlp {
        ca: Some("/nowhere/ca.pem".into()),
        ..at("https://c")
    };
    let wrong = resolved(&given, "PROTOCOL=x").unwrap_err();
    assert!(wrong.contains("\nca: /nowhere/ca.pem "), "{wrong}");
}

#[test]
fn a_given_header_overrides_the_environments_and_none_is_shown() {
    let given = Otlp {
        headers: vec!["Authorization: Bearer own-key".into()],
        ..at("http://c")
    };
    let settings = of(&given, "HEADERS=authorization=other,x-key=a%20b");
    let shown = format!("{settings:?} {:?}", settings.headers);
    let pairs = settings.headers.iter();
    let pairs = pairs.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    assert!(pairs.eq(["authorization: Bearer own-key", "x-key: a b"]));
    let is_shown = ["own-key", "a b"].map(|value| shown.contains(value));
    assert_eq!(is_shown, [false; 2], "{shown}");
    for wrong in ["no colon", ": value", "a b: value", "a: \u{1}"] {
        let read = read_header(&mut HeaderMap::new(), wrong);
        assert!(read.is_err(), "{wrong:?}");
    }
}

/// A request that went well, with its first token after 3 s and its end after 9 s.
fn request() -> Row {
    let mut row = Row::new(Side::Front, Endpoint::Generate, "r".into());
    let moments = [Moment::Arrival, Moment::FirstToken, Moment::End];
    for (moment, seconds) in moments.into_iter().zip([0, 3, 9]) {
        row.timeline.set(moment, Stamp::from_nanos(seconds * NANOS));
    }
    row.outcome = Some(Outcome::Ok);
    row
}

type Change<T> = fn(&mut T);
const WELL: Change<Row> = |_| ();
const LEFT: Change<Row> = |row| row.outcome = Some(Outcome::ClientAbort);
const CLIENT_SAMPLED: Change<Row> = |row| row.internal.trace.received_sampled = Some(true);
const SENT: Change<Row> = |row| row.internal.trace.sent_sampled = true;
const CLIENT_UNSAMPLED: Change<Row> = |row| row.internal.trace.received_sampled = Some(false);
const NOTHING: Change<Otlp> = |_| ();
const FOLLOW_NONE: Change<Otlp> = |o| (o.ratio, o.follow_client) = (1.0, false);

#[test]
fn a_trace_is_kept_for_its_outcome_its_latency_its_flag_or_by_its_share() {
    let cases: [(Change<Row>, Change<Otlp>, &str); 13] = [
        (WELL, NOTHING, ""),
        (LEFT, NOTHING, ""),
        (LEFT, |o| o.keep_errors = true, "error"),
        (WELL, |o| o.keep_errors = true, ""),
        (WELL, |o| o.keep_ttft_over_s = Seconds::of::<3>(), ""),
        (WELL, |o| o.keep_ttft_over_s = Seconds::of::<2>(), "slow"),
        (WELL, |o| o.keep_total_over_s = Seconds::of::<9>(), ""),
        (WELL, |o| o.keep_total_over_s = Seconds::of::<8>(), "slow"),
        (CLIENT_SAMPLED, NOTHING, "flagged"),
        (SENT, NOTHING, "flagged"),
        (WELL, |o| o.ratio = 1.0, "ratio"),
        (CLIENT_UNSAMPLED, |o| o.ratio = 1.0, ""),
        (CLIENT_UNSAMPLED, FOLLOW_NONE, "ratio"),
    ];
    for (number, (change, keys, expected)) in cases.into_iter().enumerate() {
        let mut given = Otlp {
            keep_errors: false,
            ratio: 0.0,
            ..Otlp::default()
        };
        let mut row = request();
        change(&mut row);
        keys(&mut given);
        let kept = given.keep_reason(&rows(&[row]), 7);
        let kept = kept.map_or("", KeepReason::name);
        assert_eq!(kept, expected, "case {number}");
    }
}

#[test]
fn the_share_of_traces_is_decided_by_their_ids() {
    // Evenly spread over the half of the id that decides.
    let step = u64::MAX / 1000;
    let ids = (0..1000).map(|n| u128::from(n * step + step / 2) | 1 << 100);
    let of = |ratio| ids.clone().filter(|id| is_in_share(*id, ratio)).count();
    assert_eq!([0.0, 0.25, 1.0].map(of), [0, 250, 1000]);
}

#[test]
fn the_flag_is_sent_upstream_as_configured() {
    let is_sent = |flag: UpstreamFlag| {
        [Some(true), Some(false), None].map(|received| flag.is_sent(received, 7, 1.0))
    };
    assert_eq!(is_sent(UpstreamFlag::Client), [true, false, false]);
    assert_eq!(is_sent(UpstreamFlag::Ratio), [true, false, true]);
    assert_eq!(is_sent(UpstreamFlag::Always), [true; 3]);
    assert_eq!(is_sent(UpstreamFlag::Never), [false; 3]);
    assert!(!UpstreamFlag::Ratio.is_sent(None, 7, 0.0));
}
