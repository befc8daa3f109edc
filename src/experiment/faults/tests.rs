//! What a plan of faults may say.

use super::*;
use crate::experiment::launch::Router;

fn value(text: &str) -> Value {
    toml::from_str::<Table>(&format!("it = {text}"))
        .unwrap()
        .remove("it")
        .unwrap()
}

fn plan(schedule: &str, kind: &str) -> Result<FaultPlan, String> {
    FaultPlan::parse(&value(schedule), &value(kind))
}

fn wanted(servers: usize) -> Wanted {
    Wanted {
        engine: Engine::Sim { flags: Vec::new() },
        servers,
        env: Vec::new(),
        base_port: None,
        router: Router::Builtin {
            policy: "round_robin".into(),
        },
        front: true,
        hops: false,
        fault_injection: false,
        proxy: Table::new(),
        program: "queuescope".into(),
        dir: ".".into(),
        start_timeout: Duration::from_secs(1),
    }
}

#[test]
fn servers_go_down_and_up_as_the_schedule_lists_them() {
    // TOML has no order, and takes 0.5 for a key in a key.
    let plan = plan(
        "{ 600 = [], 30 = [1, 2], 0.5 = [2], 300 = [2] }",
        "\"kill\"",
    )
    .unwrap();
    let change = |at, is_down| Change { at, is_down };
    assert_eq!(plan.changes(0), [change(30.0, true), change(300.0, false)]);
    assert_eq!(plan.changes(1), [change(0.5, true), change(600.0, false)]);
    assert_eq!(plan.changes(2), []);
    assert!(!plan.needs_hops());
    plan.check(&wanted(2)).unwrap();
    let flag = FaultPlan::parse(
        &Value::from("{ 600 = [], 30 = [1, 2], 0.5 = [2], 300 = [2] }"),
        &Value::from("kill"),
    );
    assert_eq!(flag.unwrap(), plan);
}

#[test]
fn a_hops_fault_is_as_the_hop_takes_it() {
    let slow = plan(
        "{ 1 = [1] }",
        "{ kind = \"slow\", ms = 50, probability = 0.5 }",
    )
    .unwrap();
    assert!(slow.needs_hops());
    let Kind::Hop { name, json } = &slow.kind else {
        panic!("{slow:?}")
    };
    assert_eq!(name, "slow");
    Fault::parse(json.as_bytes()).unwrap();
    let error = slow.check(&wanted(1)).unwrap_err();
    assert!(
        error.contains("failure_kind = \"slow\"") && error.contains("hops = true"),
        "{error}"
    );
    let with_hops = Wanted {
        hops: true,
        fault_injection: true,
        ..wanted(1)
    };
    slow.check(&with_hops).unwrap();
    let flag = FaultPlan::parse(
        &value("{ 1 = [1] }"),
        &Value::from("{ kind = \"stall\", ms = 5 }"),
    );
    assert_eq!(flag.unwrap().kind.name(), "stall");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn an_error_names_the_key_and_what_is_right() {
    for (schedule, kind, pieces) in [
        (
            "3",
            "\"kill\"",
            &[
                "failure_schedule: is no table",
                "{ 300 = [1, 2], 600 = [] }",
            ][..],
        ),
        ("{}", "\"kill\"", &["failure_schedule: is empty"]),
        ("{ soon = [1] }", "\"kill\"", &["`soon` is no time"]),
        ("{ -1 = [1] }", "\"kill\"", &["`-1` is no time"]),
        ("{ 5 = 1 }", "\"kill\"", &["5 = 1: is no list of servers"]),
        (
            "{ 5 = [0] }",
            "\"kill\"",
            &["5 = [0]: is no list", "counted from 1"],
        ),
        (
            "{ 5 = [1], 5.5 = [] }",
            "\"kill\"",
            &[
                "failure_schedule: { 5 = [1], 5.5 = [] } is no TOML table: ",
                "in quotes",
            ],
        ),
        (
            "{ 5 = [1], 05 = [] }",
            "\"kill\"",
            &["5 s stands there twice"],
        ),
        (
            "{ 5 = [1] }",
            "\"crash\"",
            &["failure_kind = \"crash\"", "must be \"kill\", \"refuse\""],
        ),
        (
            "{ 5 = [1] }",
            "\"slow\"",
            &["failure_kind", "slow", "ms", "{ kind = \"slow\", ms = 50 }"],
        ),
        ("{ 5 = [1] }", "7", &["failure_kind = 7: must be"]),
    ] {
        let Err(error) = FaultPlan::parse(&Value::from(schedule), &value(kind)) else {
            panic!("{schedule} {kind} is taken");
        };
        for piece in pieces {
            assert!(error.contains(piece), "{schedule} {kind}: {error}");
        }
    }
    let unknown = plan("{ 5 = [1, 5] }", "\"kill\"")
        .unwrap()
        .check(&wanted(4))
        .unwrap_err();
    assert!(
        unknown.contains("5 s: there is no server 5, but 4 servers"),
        "{unknown}"
    );
    let external = Wanted {
        engine: Engine::External {
            urls: vec!["http://h:1".into()],
        },
        ..wanted(0)
    };
    let unkillable = plan("{ 5 = [1] }", "\"kill\"")
        .unwrap()
        .check(&external)
        .unwrap_err();
    assert!(
        unkillable.contains("not ours to kill") && unkillable.contains("\"refuse\""),
        "{unkillable}"
    );
}
