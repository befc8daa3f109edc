use super::*;

fn of(given: &Given, env: &[(&str, &str)]) -> Result<Option<Settings>, String> {
    let env = |name: &str| {
        let mut all = env.iter();
        all.find_map(|(key, value)| (*key == name).then(|| (*value).to_owned()))
    };
    resolved(given, &env).map(|resolved| resolved.settings)
}

fn resolved(given: &Given, env: &dyn Fn(&str) -> Option<String>) -> Result<Resolved, String> {
    Settings::resolve(given, "queuescope", env).map_err(|wrong| wrong.to_string())
}

/// What is said of variables, with the collector that they name.
fn notes(env: &[(&str, &str)]) -> (String, String) {
    let env = |name: &str| {
        let all = [&[(ALL, "http://c:4317")], env].concat();
        let found = all.into_iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_owned())
    };
    let resolved = resolved(&Given::default(), &env).unwrap();
    let target = resolved.settings.map_or("none".into(), |to| to.target());
    (target, resolved.notes.join("; "))
}

fn at(endpoint: &str) -> Given {
    Given {
        endpoint: Some(endpoint.into()),
        ..Given::default()
    }
}

/// Where to, of what is given alone and of the environment alone.
fn target(given: &str, env: &[(&str, &str)]) -> String {
    let given = if given.is_empty() {
        Given::default()
    } else {
        at(given)
    };
    match of(&given, env) {
        Ok(settings) => settings.map_or("none".into(), |settings| settings.target()),
        Err(wrong) => wrong,
    }
}

const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

#[test]
fn the_collector_is_the_given_one_or_the_environments() {
    for (given, env, expected) in [
        ("", &[][..], "none"),
        ("", &[(ALL, " ")], "none"),
        ("http://c:4317", &[], "http://c:4317 by grpc"),
        ("c:4317", &[], "http://c:4317 by grpc"),
        (
            "http://c:4318",
            &[],
            "http://c:4318/v1/traces by http/protobuf",
        ),
        (
            "http://c:4318/",
            &[],
            "http://c:4318/v1/traces by http/protobuf",
        ),
        (
            "http://c/own/path",
            &[],
            "http://c/own/path by http/protobuf",
        ),
        (
            "http://c:9",
            &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            "http://c:9 by grpc",
        ),
        (
            "",
            &[(ALL, "http://c/base")],
            "http://c/base/v1/traces by http/protobuf",
        ),
        (
            "",
            &[(ALL, "http://a"), (TRACES, "http://c/x")],
            "http://c/x by http/protobuf",
        ),
        (
            "http://c/x",
            &[(TRACES, "http://a")],
            "http://c/x by http/protobuf",
        ),
        (
            "",
            &[
                (ALL, "http://c:4317"),
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ],
            "http://c:4317/v1/traces by http/protobuf",
        ),
    ] {
        assert_eq!(target(given, env), expected, "{given} {env:?}");
    }
}

#[test]
fn variables_turn_off_what_no_key_names() {
    for (given, env, expected) in [
        (
            "http://c:4317",
            &[
                ("OTEL_SDK_DISABLED", "True"),
                ("OTEL_TRACES_SAMPLER", "always_off"),
            ][..],
            "http://c:4317 by grpc",
        ),
        (
            "",
            &[(ALL, "http://c:4317"), ("OTEL_SDK_DISABLED", "True")],
            "none",
        ),
        (
            "",
            &[
                (ALL, "http://c:4317"),
                ("OTEL_TRACES_EXPORTER", "console, otlp"),
            ],
            "http://c:4317 by grpc",
        ),
        ("", &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")], "none"),
        (
            "",
            &[(ALL, "http://c"), ("OTEL_TRACES_EXPORTER", "none")],
            "none",
        ),
        (
            "",
            &[(ALL, "http://c"), ("OTEL_TRACES_SAMPLER", "always_off")],
            "none",
        ),
    ] {
        assert_eq!(target(given, env), expected, "{given} {env:?}");
    }
}

#[test]
fn what_cannot_be_used_is_named() {
    for (given, env, expected) in [
        ("ftp://c", &[][..], "endpoint: must be http:// or https://"),
        ("http://key@c", &[], "endpoint: must be http:// or https://"),
        ("http://", &[], "endpoint: is no URL"),
        (
            "http://c/?key=secret",
            &[],
            "endpoint: must be http:// or https:// with a host and no query",
        ),
        (
            "c",
            &[("OTEL_EXPORTER_OTLP_PROTOCOL", "x")],
            "OTEL_EXPORTER_OTLP_PROTOCOL: must be one of grpc",
        ),
        (
            "c",
            &[("OTEL_EXPORTER_OTLP_HEADERS", "secret")],
            "OTEL_EXPORTER_OTLP_HEADERS: must be like",
        ),
        (
            "c",
            &[("OTEL_EXPORTER_OTLP_TIMEOUT", "-1")],
            "OTEL_EXPORTER_OTLP_TIMEOUT: must be a whole number",
        ),
        (
            "c",
            &[
                ("OTEL_TRACES_SAMPLER", "traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "2"),
            ],
            "OTEL_TRACES_SAMPLER_ARG: must be a number from 0 to 1",
        ),
        (
            "https://c",
            &[("OTEL_EXPORTER_OTLP_CERTIFICATE", "/none")],
            "OTEL_EXPORTER_OTLP_CERTIFICATE: /none cannot be",
        ),
    ] {
        let wrong = target(given, env);
        assert!(
            wrong.starts_with(expected) && !wrong.contains("secret"),
            "{wrong}"
        );
    }
}

#[test]
fn what_variables_ask_for_in_vain_is_told_and_stops_nothing() {
    let kept = "http://c:4317 by grpc";
    for (name, value, expected, note) in [
        (
            "OTEL_EXPORTER_OTLP_COMPRESSION",
            "gzip",
            kept,
            "go uncompressed",
        ),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "none", kept, ""),
        (
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "http/json",
            "http://c:4317/v1/traces by http/protobuf",
            "http/protobuf in place of",
        ),
        (
            "OTEL_TRACES_SAMPLER",
            "parentbased_jaeger_remote",
            kept,
            "is not heeded: always_on",
        ),
        (
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
            "/k",
            kept,
            "OTEL_EXPORTER_OTLP_CLIENT_KEY is not",
        ),
        (
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            "9",
            kept,
            "MAX_EXPORT_BATCH_SIZE is not",
        ),
        ("OTEL_SDK_DISABLED", "true", "none", "OTEL_SDK_DISABLED"),
        ("OTEL_TRACES_SAMPLER", "always_off", "none", "always_off"),
        ("OTEL_TRACES_EXPORTER", "console", "none", "names no otlp"),
    ] {
        let (target, said) = notes(&[(name, value)]);
        assert_eq!(target, expected, "{name}={value}");
        assert!(said.contains(note), "{name}={value}: {said}");
        assert_eq!(said.is_empty(), note.is_empty(), "{name}={value}: {said}");
    }
    let nowhere = resolved(&Given::default(), &|name| {
        (name == "OTEL_EXPORTER_OTLP_COMPRESSION").then(|| "gzip".to_owned())
    });
    assert!(nowhere.unwrap().notes.is_empty(), "there are no traces");
}

#[test]
fn headers_of_both_with_the_given_one_first_and_none_shown() {
    let mut headers = Headers::default();
    headers.read("Authorization: Bearer given").unwrap();
    let given = Given {
        headers: Some(headers),
        ..at("c")
    };
    let env = [(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "authorization=other,x-key=a%20b",
    )];
    let settings = of(&given, &env).unwrap().unwrap();
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
fn the_samplers_of_the_environment_give_way_to_what_is_given() {
    let sampler = |given: &Given, name: &str, arg: &str| {
        let env = [
            ("OTEL_TRACES_SAMPLER", name),
            ("OTEL_TRACES_SAMPLER_ARG", arg),
        ];
        let sampling = of(given, &env).unwrap().unwrap().sampling;
        (sampling.ratio, sampling.follow_client)
    };
    assert_eq!(sampler(&at("c"), "", ""), (1.0, true));
    assert_eq!(sampler(&at("c"), "always_on", ""), (1.0, false));
    assert_eq!(sampler(&at("c"), "traceidratio", "0.25"), (0.25, false));
    assert_eq!(
        sampler(&at("c"), "parentbased_traceidratio", "0.25"),
        (0.25, true)
    );
    assert_eq!(sampler(&at("c"), "parentbased_always_off", ""), (0.0, true));
    let given = Given {
        ratio: Some(0.5),
        follow_client: Some(true),
        ..at("c")
    };
    assert_eq!(sampler(&given, "always_on", ""), (0.5, true));
    assert_eq!(sampler(&given, "always_off", ""), (0.5, true));
}

#[test]
fn limits_and_names_of_the_environment() {
    let env = [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "7"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,service.name=by%20resource"),
    ];
    let settings = of(&at("c"), &env).unwrap().unwrap();
    let millis = [settings.timeout, settings.delay].map(|limit| limit.as_millis());
    assert_eq!((millis, settings.queue), ([250, 1], 7));
    let none = [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
    ];
    let default = of(&at("c"), &none).unwrap().unwrap();
    assert_eq!((default.timeout, default.queue), (TIMEOUT, QUEUE));
    assert_eq!(settings.service_name, "by resource");
    let named = [env.as_slice(), &[("OTEL_SERVICE_NAME", "own")]].concat();
    assert_eq!(of(&at("c"), &named).unwrap().unwrap().service_name, "own");
    assert_eq!(
        of(&at("c"), &[]).unwrap().unwrap().service_name,
        "queuescope"
    );
}
