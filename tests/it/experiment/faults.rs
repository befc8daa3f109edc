//! Failures done on purpose.

use std::collections::BTreeSet;
use std::path::Path;

use queuescope::clock::Clock;
use queuescope::experiment::faults::{self, FaultKind, FaultPlan, Schedule};
use queuescope::experiment::launch::{Deployment, DeploymentSpec, EngineName, Router};
use queuescope::report::files::FaultRow;

use super::deployed::{hosts, running, send, spec, words};
use crate::support::generator::sim;

fn plan(schedule: &str, kind: &str) -> FaultPlan {
    let schedule = Schedule::parse(schedule).unwrap();
    let kind = FaultKind::parse(kind).unwrap();
    FaultPlan { kind, schedule }
}

/// Does it to what runs, and gives what was written of it.
async fn done(plan: &FaultPlan, deployment: &Deployment, folder: &Path) -> Vec<String> {
    let (clock, file) = (Clock::system(), folder.join("faults.csv"));
    let done = faults::run(plan, &deployment.servers, clock.now(), &clock, &file);
    done.await.unwrap();
    let rows = csv::Reader::from_path(file).unwrap().into_deserialize();
    let rows: Vec<FaultRow> = rows.map(Result::unwrap).collect();
    assert!(rows.is_sorted_by_key(|row| row.time), "{rows:?}");
    let is_right =
        |row: &FaultRow| row.server == "server-1" && Some(row.kind.as_str()) == kind(plan);
    assert!(rows.iter().all(is_right), "{rows:?}");
    rows.into_iter().map(|row| row.event).collect()
}

fn kind(plan: &FaultPlan) -> Option<&str> {
    match &plan.kind {
        FaultKind::Kill => Some("kill"),
        FaultKind::Hop(fault) => Some(fault.kind.name()),
    }
}

#[tokio::test]
async fn a_killed_server_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = spec(folder.path());
    let deployment = Deployment::start(&wanted).await.unwrap();
    let plan = plan(r#"{ 0 = [1], "0.01" = [] }"#, "kill");
    plan.check(&wanted).unwrap();
    let events = done(&plan, &deployment, folder.path()).await;
    assert_eq!(events, ["down", "up", "ready"]);
    let after = send(
        &deployment,
        &folder,
        "after",
        "--num-prompts 20 --upstream-kind server",
    )
    .await;
    assert_eq!(
        (words(&after, "host"), words(&after, "outcome")),
        (hosts(&deployment), BTreeSet::from(["ok".to_owned()]))
    );
    deployment.stop().await;
}

#[tokio::test]
async fn a_hop_does_it_to_servers_that_are_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let sim = sim(|_| {});
    let wanted = DeploymentSpec {
        engine: EngineName::External,
        servers: running(&[format!("http://{}", sim.addr())]),
        router: Router::None,
        hops: true,
        proxy: [("fault_injection".to_owned(), true.into())].into(),
        ..spec(folder.path())
    };
    let deployment = Deployment::start(&wanted).await.unwrap();
    for (number, schedule, outcome) in [
        ("0", "{ 0 = [1] }", false),
        ("1", r#"{ 0 = [1], "0.01" = [] }"#, true),
    ] {
        let plan = plan(schedule, "refuse");
        assert!(plan.needs_hops());
        plan.check(&wanted).unwrap();
        assert_eq!(
            done(&plan, &deployment, folder.path()).await,
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
