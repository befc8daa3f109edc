use super::*;

/// Resolves with these variables, whose common prefix may be left out.
fn resolved(given: &Otlp, env: &str) -> Result<Option<Settings>, InvalidSetting> {
    let env = |name: &str| {
        let name = name.strip_prefix("OTEL_EXPORTER_OTLP_").unwrap_or(name);
        let mut pairs = env.split(';').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| key.trim() == name);
        found.map(|(_, value)| value.trim().to_owned())
    };
    Settings::resolve(given, "queuescope", &env)
}

/// The same, which must be right and name a collector.
pub(in crate::telemetry::otlp) fn of(given: &Otlp, env: &str) -> Settings {
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
            Err(wrong) => wrong.to_string(),
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
