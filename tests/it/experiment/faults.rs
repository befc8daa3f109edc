//! Failures done on purpose.

use std::collections::BTreeSet;
use std::path::Path;

use queuescope::clock::Clock;
use queuescope::experiment::faults::{self, FaultKind, FaultPlan, Schedule};
use queuescope::experiment::launch::{Deployment, DeploymentSpec, EngineName, Router};
use queuescope::report::files::FaultRow;
use toml::Value;

use super::deployed::{hosts, running, send, sims, spec, words};
use crate::support::generator::sim;

fn plan(schedule: &str, kind: &str) -> FaultPlan {
    let schedule = Schedule::parse(schedule).unwrap();
    let kind = FaultKind::parse(kind).unwrap();
    FaultPlan { kind, schedule }
}

fn written(file: &Path) -> Vec<FaultRow> {
    let rows = csv::Reader::from_path(file).unwrap().into_deserialize();
    rows.map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_killed_server_fails_its_requests_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    // Some are under way at any time.
    let wanted = DeploymentSpec {
        servers: sims(&["--tokenize-ms", "0", "--decode-step-ms", "20"]),
        ..spec(folder.path())
    };
    let deployment = Deployment::start(&wanted).await.unwrap();
    let servers = hosts(&deployment);
    let first = deployment.servers[0].file.host.clone();
    let plan = plan("{ 1 = [1], 2 = [] }", "kill");
    plan.check(&wanted).unwrap();
    let (clock, file) = (Clock::system(), folder.path().join("faults.csv"));
    let load = "--num-prompts 160 --request-rate 40 --seed 3";
    let (done, table) = tokio::join!(
        faults::run(&plan, &deployment.servers, clock.now(), &clock, &file),
        send(&deployment, &folder, "run", load)
    );
    done.unwrap();
    let rows = written(&file);
    let events: Vec<_> = rows
        .iter()
        .map(|row| (row.server.as_str(), row.kind.as_str(), row.event.as_str()))
        .collect();
    assert_eq!(
        events,
        [
            ("server-1", "kill", "down"),
            ("server-1", "kill", "up"),
            ("server-1", "kill", "ready")
        ]
    );
    assert!(
        rows[0].time >= 1.0 && rows[1].time >= 2.0 && rows[2].time >= rows[1].time,
        "{rows:?}"
    );
    assert_eq!(table.len(), 160);
    assert_eq!(words(&table, "host"), servers);
    let failed: Vec<usize> = (0..table.len())
        .filter(|row| table.text("outcome", *row) != "ok")
        .collect();
    assert!(!failed.is_empty());
    for row in failed {
        assert_eq!(
            (table.text("host", row), table.text("outcome", row)),
            (first.as_str(), "upstream_died")
        );
    }
    let after = send(&deployment, &folder, "after", "--num-prompts 20").await;
    assert_eq!(
        (words(&after, "host"), words(&after, "outcome")),
        (servers, BTreeSet::from(["ok".to_owned()]))
    );
    deployment.stop().await;
}

#[tokio::test]
async fn a_hop_does_it_to_servers_that_are_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let sim = sim(|_| {});
    // Whoever has faults injected says who asks, where the proxy wants to know.
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let token = Value::from(token.to_str().unwrap());
    let wanted = DeploymentSpec {
        engine: EngineName::External,
        servers: running(&[format!("http://{}", sim.addr())]),
        router: Router::None,
        hops: true,
        fault_injection: true,
        proxy: [("admin_token_file".to_owned(), token)]
            .into_iter()
            .collect(),
        ..spec(folder.path())
    };
    let deployment = Deployment::start(&wanted).await.unwrap();
    let (clock, file) = (Clock::system(), folder.path().join("faults.csv"));
    for (number, schedule, outcome) in [
        ("0", "{ 0 = [1] }", false),
        ("1", r#"{ 0 = [1], "0.01" = [] }"#, true),
    ] {
        let plan = plan(schedule, "refuse");
        assert!(plan.needs_hops());
        plan.check(&wanted).unwrap();
        let done = faults::run(&plan, &deployment.servers, clock.now(), &clock, &file);
        done.await.unwrap();
        let rows = written(&file);
        let events: Vec<_> = rows.iter().map(|row| row.event.as_str()).collect();
        assert_eq!(
            events,
            ["down", "up", "ready"][..if outcome { 3 } else { 1 }]
        );
        let table = send(&deployment, &folder, number, "--num-prompts 5").await;
        assert_eq!(
            words(&table, "success"),
            BTreeSet::from([if outcome { "True" } else { "False" }.to_owned()])
        );
    }
    deployment.stop().await;
}
