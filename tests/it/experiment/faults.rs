//! Failures done on purpose.

use queuescope::clock::Clock;
use queuescope::experiment::faults::{self, FaultKind, FaultPlan, Schedule};
use queuescope::experiment::launch::{Deployment, DeploymentSpec, EngineName, Router};
use queuescope::report::files::FaultRow;

use super::deployed::{hosts, running, send, spec, words};
use crate::support::generator::sim;

/// Does to the first server what fits, and gives what was written of it.
async fn done(
    kind: &str,
    schedule: &str,
    (spec, deployment): (&DeploymentSpec, &Deployment),
) -> Vec<String> {
    let plan = FaultPlan {
        kind: FaultKind::parse(kind).unwrap(),
        schedule: Schedule::parse(schedule).unwrap(),
    };
    plan.check(spec).unwrap();
    let (clock, file) = (Clock::system(), spec.dir.join("faults.csv"));
    let done = faults::run(&plan, &deployment.servers, clock.now(), &clock, &file);
    done.await.unwrap();
    let rows = csv::Reader::from_path(file).unwrap().into_deserialize();
    let rows: Vec<FaultRow> = rows.map(Result::unwrap).collect();
    assert!(rows.is_sorted_by_key(|row| row.time), "{rows:?}");
    let is_right = |row: &FaultRow| (&*row.server, &*row.kind) == ("server-1", kind);
    assert!(rows.iter().all(is_right), "{rows:?}");
    rows.into_iter().map(|row| row.event).collect()
}

/// A server of ours that is killed, and one that is not ours, behind a hop.
#[tokio::test]
async fn a_server_that_is_taken_down_comes_back() {
    let sim = sim(|_| {});
    for kind in ["kill", "refuse"] {
        let folder = tempfile::tempdir().unwrap();
        let mut wanted = spec(folder.path());
        if kind == "refuse" {
            wanted = DeploymentSpec {
                engine: EngineName::External,
                servers: running(&[format!("http://{}", sim.addr())]),
                router: Router::None,
                hops: true,
                proxy: [("fault_injection".to_owned(), true.into())].into(),
                ..wanted
            };
        }
        let deployment = Deployment::start(&wanted).await.unwrap();
        let there = (&wanted, &deployment);
        if kind == "refuse" {
            assert_eq!(done(kind, "{ 0 = [1] }", there).await, ["down"]);
            let table = send(&deployment, &folder, "down", "--num-prompts 5").await;
            assert!(words(&table, "success").iter().eq(["False"]));
        }
        let events = done(kind, r#"{ 0 = [1], "0.01" = [] }"#, there).await;
        assert_eq!(events, ["down", "up", "ready"]);
        let flags = "--num-prompts 20 --upstream-kind server";
        let table = send(&deployment, &folder, "up", flags).await;
        assert!(words(&table, "outcome").iter().eq(["ok"]), "{kind}");
        assert_eq!(words(&table, "host"), hosts(&deployment), "{kind}");
        deployment.stop().await;
    }
}
