//! Tests of the fields of faults, and of the workers that have them.

use super::*;

fn parse(json: &str) -> Result<Fault, String> {
    Fault::parse(json.as_bytes())
}

/// JSON, and pieces of its error.
const INVALID: &str = r#" | EOF | as in {"kind"
[1] | expected | as in {"kind"
{"kind":"reset"} 1 | trailing
{} | missing field `kind` | as in {"kind"
{"kind":"stall","ms":"1s","ms":2} | duplicate field `ms`
{"kind":"crash"} | kind: unknown variant `crash`, expected one of `refuse`, `reset`, `stall`, `slow`, `cut`
{"kind":"stall","ms":-1} | ms: must be a whole number from 0 to 4294967295, or one with its unit, such as 250ms
{"kind":"stall","ms":5000000000} | ms: must be
{"kind":"stall","ms":2.5} | ms: must be
{"kind":"stall","ms":"1"} | ms: must be
{"kind":"stall","ms":"0.5us"} | ms: must be
{"kind":"stall","ms":"1KiB"} | ms: must be
{"kind":"slow"} | slow | takes ms
{"kind":"slow","ms":1,"after_bytes":2} | slow | takes ms
{"kind":"cut"} | cut | takes after_bytes
{"kind":"cut","after_bytes":1,"ms":2} | cut | takes after_bytes
{"kind":"cut","after_bytes":-2} | after_bytes: must be a whole number, 0 or more, or one with its unit, such as 64KiB
{"kind":"reset","ms":1} | reset | no field of its own
{"kind":"stall","after_bytes":1} | stall | takes ms
{"kind":"reset","speed":1} | `speed` | `count`
{"kind":"reset","count":0} | count: must be a whole number, 1 or more"#;

#[test]
fn an_error_names_the_field_and_what_is_valid() {
    for line in INVALID.lines() {
        let mut pieces = line.split(" | ");
        let json = pieces.next().unwrap();
        let error = parse(json).unwrap_err();
        for piece in pieces {
            assert!(error.contains(piece), "{json}: {error}");
        }
    }
}

#[test]
fn a_number_may_be_a_text_with_its_unit_or_null() {
    for (field, with_unit, plain) in [
        (r#""stall","ms""#, r#""2min""#, "120000"),
        (r#""cut","after_bytes""#, r#""1.5KB""#, "1500"),
    ] {
        let of = |number: &str| parse(&format!("{{\"kind\":{field}:{number}}}")).unwrap();
        assert_eq!(of(with_unit), of(plain), "{field}");
    }
    assert!(parse(r#"{"kind":"reset","ms":null,"after_bytes":null}"#).is_ok());
}

fn inject(faults: &Faults, worker: &str) -> Option<Injected> {
    faults.try_inject(worker, true)
}

fn fault(kind: &str, count: u64) -> Option<Fault> {
    let json = format!(r#"{{"kind":"{kind}","count":{count}}}"#);
    Some(Fault::parse(json.as_bytes()).unwrap())
}

#[test]
fn only_known_workers_have_faults() {
    let faults = Faults::new(Metrics::new().unwrap());
    faults.set_workers(&["stays", "goes"]);
    assert_eq!(faults.names(), ["goes", "stays"]);
    for worker in ["stays", "goes", "unknown"] {
        faults.set(worker, fault("reset", 99));
    }
    assert!(inject(&faults, "unknown").is_none());
    faults.set_workers(&["stays"]);
    assert!(inject(&faults, "goes").is_none());
    faults.set_workers(&["stays", "goes"]);
    // A worker that is added again has no fault.
    assert!(inject(&faults, "goes").is_none() && inject(&faults, "stays").is_some());
}
