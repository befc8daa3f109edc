//! What a run needs is started, fails when it is to, and nothing of it is left.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use queuescope::clock::Clock;
use queuescope::experiment::faults::{self, FaultKind, FaultPlan, Schedule};
use queuescope::experiment::launch::{CommandLine, Deployment, DeploymentSpec, Router, ServerSpec};
use queuescope::report::files::FaultRow;
use queuescope::request::ColumnId;

use super::{assert_nothing_is_left, hosts, left, routed, send, spec, started, until, words};
use crate::support::assert_says;
use crate::support::process::{PROGRAM, lines_of, queuescope};
use crate::support::router::{Which, free_port};
use crate::support::wire::PATIENCE;

#[tokio::test]
async fn the_real_router_runs_with_each_of_its_policies_and_hops_see_what_it_does() {
    for policy in ["random", "round_robin", "cache_aware", "power_of_two"] {
        let folder = tempfile::tempdir().unwrap();
        let mut wanted = routed(Which::Sglang032, folder.path());
        wanted.policy = policy.into();
        let deployment = Deployment::start(&wanted).await.unwrap();
        let hosts = hosts(&deployment);
        let table = send(&deployment, &folder, "run", "--num-prompts 24").await;
        let outcomes = words(&table, "outcome").len();
        assert_eq!((table.len(), outcomes), (24, 1), "{policy}");
        assert!(words(&table, "host").is_subset(&hosts), "{policy}");
        let has_waited = |row| table.number(ColumnId::queue_time_in_router, row) > Some(0.0);
        assert!((0..24).all(has_waited), "{policy}");
        assert_eq!(left(folder.path()).len(), 4);
        match policy {
            "random" => drop(deployment),
            _ => deployment.stop().await,
        }
        assert_nothing_is_left(folder.path(), &hosts);
    }
}

/// A server by a script.
fn shell(script: &str) -> ServerSpec {
    ServerSpec::Started(CommandLine::new("sh", &["-c", script, "sh"]))
}

#[tokio::test]
async fn one_that_hears_no_sigterm_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("trap '' TERM; {PROGRAM} sim \"$@\" & while :; do sleep 1; done");
    let wanted = DeploymentSpec {
        servers: vec![shell(&script)],
        router: Router::None,
        front: false,
        ..spec(folder.path())
    };
    let deployment = Deployment::start(&wanted).await.unwrap();
    let hosts = hosts(&deployment);
    tokio::time::pause();
    deployment.stop().await;
    assert_nothing_is_left(folder.path(), &hosts);
}

/// A keeper of this script, and the folder in /proc of the process that the script names.
fn kept(script: &str) -> (Child, PathBuf) {
    let mut keeper = queuescope(&["end-with-parent", "--", "sh", "-c", script]);
    keeper.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut keeper = keeper.spawn().unwrap();
    let named = lines_of(keeper.stderr.take().unwrap()).recv().unwrap();
    (keeper, Path::new("/proc").join(named))
}

#[test]
fn a_keeper_ends_as_what_it_keeps_when_nothing_of_its_group_is_left() {
    for (end, script, status) in [
        ("itself", "sleep 1000 & echo $!; exit 7", (Some(7), None)),
        ("a signal", "sleep 1000 & echo $!; wait", (None, Some(9))),
        (
            "a fault",
            "sleep 1000 & echo $!; kill -SEGV $$",
            (None, Some(11)),
        ),
        ("its parent", "sleep 1000 & echo $!; wait", (None, Some(15))),
    ] {
        let (mut keeper, other) = kept(script);
        let mut signals = keeper.stdin.take();
        match end {
            "a signal" => signals.as_mut().unwrap().write_all(&[9]).unwrap(),
            "its parent" => drop(signals.take()),
            _ => {}
        }
        let ended = keeper.wait().unwrap();
        assert_eq!((ended.code(), ended.signal()), status, "{end}");
        assert!(!other.exists(), "{end}: {other:?}");
    }
}

#[test]
fn what_is_kept_ends_with_a_keeper_that_is_killed() {
    let (mut keeper, process) = kept("echo $$; exec sleep 1000");
    let name = std::fs::read_to_string(format!("/proc/{}/comm", keeper.id()));
    assert_eq!(name.unwrap(), "keeper\n", "`killall queuescope` hits it");
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    let status = process.join("status");
    // It was killed before the command began.
    let orphan = queuescope(&["end-with-parent", "--kept-by", "1", "--", "true"]).status();
    assert_eq!(orphan.unwrap().code(), Some(137));
    // Nobody may have waited for it yet.
    let has_ended = |status: String| status.contains("\nState:\tZ");
    until("its end", || {
        std::fs::read_to_string(&status).map_or(true, has_ended)
    });
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    // Two in a row, so that no other test has the first.
    let mut pairs = std::iter::repeat_with(|| (free_port().port(), free_port().port()));
    let (first, port) = pairs.find(|(first, port)| *port == first + 1).unwrap();
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let serving = |server: ServerSpec| DeploymentSpec {
        servers: vec![server],
        ..spec(dir)
    };
    // Of two servers the second's.
    let taken_port =
        format!("base_port = {first}: port {port} cannot be opened|Address already in use");
    let on_taken_port = DeploymentSpec {
        base_port: Some(first),
        ..spec(dir)
    };
    let nobody = format!("http://{}", free_port());
    let too_soon = DeploymentSpec {
        start_timeout: std::time::Duration::from_secs(1),
        ..serving(ServerSpec::Running(nobody))
    };
    // Its end ends the start at once.
    let no_flag = DeploymentSpec {
        start_timeout: std::time::Duration::from_secs(86_400),
        ..serving(started(PROGRAM, "sim --no-such"))
    };
    for (wanted, pieces) in [
        (on_taken_port, &*taken_port),
        (
            no_flag,
            "server-|unexpected argument '--no-such'|command: | sim |logs/server-|--help",
        ),
        (too_soon, "server-1|is not ready|Connection refused"),
    ] {
        let start = tokio::time::timeout(PATIENCE, Deployment::start(&wanted));
        let error = format!("{:#}", start.await.unwrap().unwrap_err());
        let pieces = pieces.split('|');
        pieces.for_each(|piece| assert_says(&error, piece));
        assert_eq!(left(dir), [""; 0], "{error}");
        // What is known before is told before anything is started.
        let log = dir.join("logs/server-1.log");
        assert!(wanted.base_port.is_none() || !log.exists(), "{error}");
    }
}

#[tokio::test]
async fn an_end_that_nobody_wanted_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kill");
    let killed = format!(
        "{PROGRAM} sim \"$@\" & until [ -e {} ]; do sleep 0.1; done; kill -9 $$",
        file.display()
    );
    let mut wanted = spec(folder.path());
    wanted.servers[1] = shell(&killed);
    let deployment = Deployment::start(&wanted).await.unwrap();
    std::fs::write(&file, "").unwrap();
    let error = deployment.ended().await.to_string();
    assert_says(&error, "server-2 ended (signal: 9");
    assert_says(&error, "the host's memory ran out, or somebody killed it");
    assert_says(&error, "logs/server-2.log");
    // Ended on purpose is no news.
    for server in &deployment.servers {
        server.kill().await;
    }
    tokio::select! {
        biased;
        error = deployment.ended() => panic!("{error}"),
        () = tokio::task::yield_now() => {}
    }
    deployment.stop().await;
    assert_eq!(left(folder.path()), [""; 0]);
}

#[tokio::test]
async fn a_killed_server_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let deployment = Deployment::start(&spec).await.unwrap();
    let plan = FaultPlan {
        kind: FaultKind::Kill,
        schedule: Schedule::parse(r#"{ 0 = [1], "0.01" = [] }"#).unwrap(),
    };
    let (clock, file) = (Clock::system(), spec.dir.join("faults.csv"));
    let done = faults::run(&plan, &deployment.servers, clock.now(), &clock, &file);
    done.await.unwrap();
    let rows = csv::Reader::from_path(file).unwrap().into_deserialize();
    let rows: Vec<FaultRow> = rows.map(Result::unwrap).collect();
    assert!(rows.is_sorted_by_key(|row| row.time), "{rows:?}");
    for (row, event) in rows.iter().zip(["down", "up", "ready"]) {
        let written = [&row.server, &row.kind, &row.event];
        assert_eq!(written, ["server-1", "kill", event]);
    }
    assert_eq!(rows.len(), 3);
    let table = send(&deployment, &folder, "up", "--num-prompts 20").await;
    assert!(words(&table, "outcome").iter().eq(["ok"]));
    assert_eq!(words(&table, "host"), hosts(&deployment));
    deployment.stop().await;
}
