//! Failures done on purpose.

use std::collections::BTreeSet;
use std::path::Path;

use queuescope::clock::Clock;
use queuescope::experiment::faults::{self, Schedule};
use queuescope::experiment::launch::Deployment;
use queuescope::report::files::FaultRow;

use super::deployed::{hosts, send, spec, words};

/// Does it to what runs, and gives what was written of it.
async fn done(plan: &Schedule, deployment: &Deployment, folder: &Path) -> Vec<String> {
    let (clock, file) = (Clock::system(), folder.join("faults.csv"));
    let done = faults::run(plan, &deployment.servers, clock.now(), &clock, &file);
    done.await.unwrap();
    let rows = csv::Reader::from_path(file).unwrap().into_deserialize();
    let rows: Vec<FaultRow> = rows.map(Result::unwrap).collect();
    assert!(rows.is_sorted_by_key(|row| row.time), "{rows:?}");
    let is_right = |row: &FaultRow| (&*row.server, &*row.kind) == ("server-1", "kill");
    assert!(rows.iter().all(is_right), "{rows:?}");
    rows.into_iter().map(|row| row.event).collect()
}

#[tokio::test]
async fn a_killed_server_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = spec(folder.path());
    let deployment = Deployment::start(&wanted).await.unwrap();
    let plan = Schedule::parse(r#"{ 0 = [1], "0.01" = [] }"#).unwrap();
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
