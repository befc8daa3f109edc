use super::*;

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn resolved(given: &Otlp, env: Pairs<'_>) -> Result<Option<Settings>, Wrong> {
    let env = |name: &str| {
        let found = env.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Settings::resolve(given, "queuescope", &env)
}

fn of(given: &Otlp, env: Pairs<'_>) -> Settings {
    resolved(given, env).unwrap().unwrap()
}

fn at(endpoint: &str) -> Otlp {
    Otlp {
        endpoint: Some(endpoint.into()).filter(|url: &String| !url.is_empty()),
        ..Otlp::default()
    }
}

/// The endpoint that is given, variables, and where traces go or what is wrong.
const CASES: &str = "
 | | none
 | ENDPOINT=  | none
http://c:4317 | | http://c:4317 by grpc
c:4317 | | http://c:4317 by grpc
c:4317/v1/traces/ | | http://c:4317 by grpc
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

ftp://c | | endpoint: must be http:// or https://
nonsense | | endpoint: must be http:// or https:// with a host
 | ENDPOINT=nonsense | OTEL_EXPORTER_OTLP_ENDPOINT: must be http:// or https:// with a host
 | TRACES_ENDPOINT=http:/c | OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be http:// or https:// with a host
 | ENDPOINT=c:port | OTEL_EXPORTER_OTLP_ENDPOINT: must be http:// or https:// with a host
http://key@c | | endpoint: must be http:// or https://
http:// | | endpoint: is no URL
http://c/?key=secret | | endpoint: must be http:// or https:// with a host and no query
http://c | PROTOCOL=http/json | OTEL_EXPORTER_OTLP_PROTOCOL: must be one of grpc, http/protobuf
http://c | HEADERS=secret | OTEL_EXPORTER_OTLP_HEADERS: must be like
https://c | CERTIFICATE=/none | OTEL_EXPORTER_OTLP_CERTIFICATE: /none cannot be
";

#[test]
fn what_is_given_is_over_the_environment_and_each_has_its_say() {
    for case in CASES.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = case.split('|').map(str::trim).collect();
        let [given, env, expected] = parts[..] else {
            panic!("{case}");
        };
        let env = env.split(';').filter_map(|pair| pair.split_once('='));
        let env: Vec<(String, &str)> = env
            .map(|(name, value)| match name.trim() {
                name if name.starts_with("OTEL_") => (name.into(), value),
                name => (format!("OTEL_EXPORTER_OTLP_{name}"), value),
            })
            .collect();
        let env: Vec<_> = env
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        let found = match resolved(&at(given), &env) {
            Ok(settings) => settings.map_or_else(|| "none".to_owned(), |to| to.target()),
            Err(wrong) => wrong.to_string(),
        };
        let is_wrong = expected.contains(": ");
        assert!(
            if is_wrong {
                found.starts_with(expected)
            } else {
                found == expected
            },
            "{case}: {found}"
        );
        assert!(!found.contains("secret"), "{case}: {found}");
    }
}

#[test]
fn headers_of_both_with_the_given_one_first_and_none_shown() {
    let given = Otlp {
        headers: vec!["Authorization: Bearer given".into()],
        ..at("http://c")
    };
    let other = (
        "OTEL_EXPORTER_OTLP_HEADERS",
        "authorization=other,x-key=a%20b",
    );
    let settings = of(&given, &[other]);
    let shown = format!("{settings:?} {:?}", settings.headers);
    let pairs = settings.headers.0.iter();
    let pairs: Vec<_> = pairs
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    assert_eq!(pairs, [("authorization", "Bearer given"), ("x-key", "a b")]);
    assert!(
        !shown.contains("given") && !shown.contains("a b"),
        "{shown}"
    );
    for wrong in ["no colon", ": value", "a b: value", "a: \u{1}"] {
        assert!(Headers::default().read(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn names_of_the_environment() {
    let of_resource = [("OTEL_RESOURCE_ATTRIBUTES", "a=b,service.name=by%20resource")];
    let named = [of_resource.as_slice(), &[("OTEL_SERVICE_NAME", "own")]].concat();
    for (env, expected) in [
        (&[][..], "queuescope"),
        (&of_resource, "by resource"),
        (&named, "own"),
    ] {
        assert_eq!(of(&at("http://c"), env).service_name, expected);
    }
    // What is given is not asked of the environment at all.
    let given = Otlp {
        protocol: Some(Protocol::Grpc),
        ..at("http://c")
    };
    let wrong = [("OTEL_EXPORTER_OTLP_PROTOCOL", "x")];
    assert_eq!(of(&given, &wrong).protocol, Protocol::Grpc);
}
