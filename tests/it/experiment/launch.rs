//! What a run needs is started, and nothing of it is left.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use queuescope::experiment::launch::{Deployment, Engine, Router, Sglang, Wanted};
use queuescope::report::table::Table;

use crate::support::generator::sim;
use crate::support::process::{queuescope, run_aside};
use crate::support::router::free_port;
use crate::support::wire::{PATIENCE, until};

/// Two simulated servers behind our balancer.
pub fn wanted(dir: &Path) -> Wanted {
    let flags = ["--tokenize-ms", "0"];
    let engine = Engine::Sim {
        flags: flags.map(str::to_owned).to_vec(),
    };
    Wanted {
        // A router is a Python that begins: on a busy machine that takes its time.
        start_timeout: PATIENCE,
        engine,
        servers: 2,
        env: Vec::new(),
        base_port: None,
        router: Router::Builtin {
            policy: "round_robin".into(),
        },
        front: true,
        hops: false,
        fault_injection: false,
        proxy: toml::Table::new(),
        program: env!("CARGO_BIN_EXE_queuescope").into(),
        dir: dir.to_owned(),
    }
}

/// The names of the processes that write to a log below `dir`: a router changes the command that others see.
fn left(dir: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let writes = |process: &PathBuf| {
        std::fs::read_link(process.join("fd/1")).is_ok_and(|log| log.starts_with(dir))
    };
    let writers = processes.map(|process| process.path()).filter(writes);
    writers
        .filter_map(|process| std::fs::read_to_string(process.join("comm")).ok())
        .collect()
}

/// The rows of so many requests to what runs, all at once or at a rate.
pub async fn send(deployment: &Deployment, dir: &Path, more: &[&str]) -> Table {
    let dir = dir.to_str().unwrap();
    let fixed = [
        "traffic",
        "--base-url",
        deployment.target(),
        "--upstream-kind",
        deployment.upstream_kind(),
    ];
    let data = [
        "--dataset-name",
        "random",
        "--random-input-len",
        "32",
        "--random-output-len",
        "16",
        "--output-dir",
        dir,
    ];
    let done = run_aside(queuescope(&[&fixed[..], &data, more].concat())).await;
    assert!(Path::new(dir).join("requests.csv").is_file(), "{done:?}");
    Table::read(&Path::new(dir).join("requests.csv")).unwrap()
}

/// The words of a column, each once.
pub fn words(table: &Table, column: &str) -> BTreeSet<String> {
    (0..table.len())
        .map(|row| table.text(column, row).to_owned())
        .collect()
}

/// The hosts of the servers.
pub fn hosts(deployment: &Deployment) -> BTreeSet<String> {
    deployment
        .servers()
        .iter()
        .map(|server| server.host.clone())
        .collect()
}

fn assert_nothing_is_left(dir: &Path, hosts: &BTreeSet<String>) {
    assert_eq!(left(dir), [""; 0]);
    for host in hosts {
        TcpListener::bind(host).unwrap_or_else(|error| panic!("{host}: {error}"));
    }
}

fn router() -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/sglang-router-0.3.2/bin/smg");
    assert!(
        program.exists(),
        "the real router is missing ({program:?}): run `bash scripts/router.sh`"
    );
    program
}

#[tokio::test]
async fn a_run_has_its_servers_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let base = free_port().port();
    let wanted = Wanted {
        base_port: Some(base),
        servers: 1,
        router: Router::None,
        front: false,
        ..wanted(folder.path())
    };
    let deployment = Deployment::start(&wanted).await.unwrap();
    let host = format!("127.0.0.1:{base}");
    assert_eq!(deployment.target(), format!("http://{host}"));
    assert_eq!(
        deployment.metrics_urls(),
        [("server-1".to_owned(), format!("http://{host}/metrics"))]
    );
    assert_eq!(left(folder.path()).len(), 1);
    let table = send(
        &deployment,
        &folder.path().join("run"),
        &["--num-prompts", "10"],
    )
    .await;
    assert_eq!(
        (table.len(), words(&table, "outcome")),
        (10, BTreeSet::from(["ok".to_owned()]))
    );
    assert_eq!(words(&table, "host"), BTreeSet::from([host.clone()]));
    assert_eq!(deployment.router_name(), None);
    let processes = deployment.processes();
    let log = std::fs::read_to_string(folder.path().join(&processes[0].log)).unwrap();
    assert!(
        log.starts_with(&format!("$ {}\n", processes[0].command)),
        "{log}"
    );
    deployment.stop().await;
    assert_nothing_is_left(folder.path(), &BTreeSet::from([host]));
}

#[tokio::test]
async fn our_balancer_sends_to_each_server_and_its_rows_are_whole_when_it_has_stopped() {
    for hops in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let wanted = Wanted {
            hops,
            ..wanted(folder.path())
        };
        let deployment = Deployment::start(&wanted).await.unwrap();
        let hosts = hosts(&deployment);
        let table = send(
            &deployment,
            &folder.path().join("run"),
            &["--num-prompts", "20"],
        )
        .await;
        assert_eq!((table.len(), words(&table, "outcome").len()), (20, 1));
        assert_eq!(words(&table, "host"), hosts, "hops: {hops}");
        assert!(
            table
                .numbers("router_send_time")
                .iter()
                .all(|at| at.is_finite()),
            "hops: {hops}"
        );
        assert_eq!(deployment.router_name().unwrap(), "builtin round_robin");
        let names: Vec<_> = deployment
            .processes()
            .into_iter()
            .map(|process| process.name)
            .collect();
        assert_eq!(names, ["server-1", "server-2", "proxy"]);
        deployment.stop().await;
        assert_nothing_is_left(folder.path(), &hosts);
        let proxy = Table::read(&folder.path().join("proxy.csv")).unwrap();
        assert_eq!((proxy.len(), words(&proxy, "host")), (20, hosts));
    }
}

#[tokio::test]
async fn the_real_router_runs_with_each_of_its_policies_and_hops_see_what_it_does() {
    let policies = ["random", "round_robin", "cache_aware", "power_of_two"];
    for policy in policies {
        let folder = tempfile::tempdir().unwrap();
        let router = Router::SglangRouter {
            program: router(),
            policy: policy.into(),
            flags: Vec::new(),
        };
        assert!(router.wants_hops());
        let wanted = Wanted {
            router,
            hops: true,
            ..wanted(folder.path())
        };
        let deployment = Deployment::start(&wanted).await.unwrap();
        let hosts = hosts(&deployment);
        let table = send(
            &deployment,
            &folder.path().join("run"),
            &["--num-prompts", "24"],
        )
        .await;
        assert_eq!(
            (table.len(), words(&table, "outcome").len()),
            (24, 1),
            "{policy}"
        );
        let served = words(&table, "host");
        assert!(served.is_subset(&hosts), "{policy}: {served:?}");
        if policy == "round_robin" {
            assert_eq!(served, hosts);
        }
        let waited = table.numbers("queue_time_in_router");
        assert!(
            waited.len() == 24 && waited.iter().all(|waited| *waited > 0.0),
            "{policy}: {waited:?}"
        );
        deployment.stop().await;
        assert_nothing_is_left(folder.path(), &hosts);
    }
}

#[tokio::test]
async fn dropping_it_ends_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let deployment = Deployment::start(&Wanted {
        hops: true,
        ..wanted(folder.path())
    })
    .await
    .unwrap();
    let hosts = hosts(&deployment);
    assert_eq!(left(folder.path()).len(), 3);
    drop(deployment);
    assert_nothing_is_left(folder.path(), &hosts);
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let taken = TcpListener::bind(free_port()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let no_flag = Engine::Sim {
        flags: vec!["--no-such".into()],
    };
    let python = Engine::Sglang {
        python: "/no/such/python".into(),
        settings: Sglang::default(),
    };
    let no_module = Engine::Sglang {
        python: "python3".into(),
        settings: Sglang::default(),
    };
    let external = Engine::External {
        urls: vec![format!("http://127.0.0.1:{}", free_port().port())],
    };
    let no_router = Router::SglangRouter {
        program: "/no/smg".into(),
        policy: "random".into(),
        flags: Vec::new(),
    };
    let no_policy = Router::SglangRouter {
        program: router(),
        policy: "shortest_queue".into(),
        flags: Vec::new(),
    };
    let base = || wanted(dir);
    for (wanted, pieces) in [
        (
            Wanted {
                base_port: Some(port),
                ..base()
            },
            &[&format!("{port} (Address already in use"), "base_port"][..],
        ),
        (
            Wanted {
                engine: no_flag,
                ..base()
            },
            &[
                "server-",
                "unexpected argument '--no-such'",
                "command: ",
                " sim ",
                "logs/server-",
                "--help",
            ],
        ),
        (
            Wanted {
                engine: python,
                ..base()
            },
            &[
                "the program is not there",
                "/no/such/python -m sglang.launch_server",
            ],
        ),
        (
            Wanted {
                engine: no_module,
                ..base()
            },
            &["this Python has no SGLang", "ModuleNotFoundError"],
        ),
        (
            Wanted {
                router: no_router,
                hops: true,
                ..base()
            },
            &["router", "the program is not there"],
        ),
        (
            Wanted {
                router: no_policy,
                hops: true,
                ..base()
            },
            &[
                "\"shortest_queue\"",
                "random, round_robin, cache_aware, power_of_two, manual",
                "builtin",
            ],
        ),
        (
            Wanted {
                router: Router::None,
                ..base()
            },
            &["router = \"none\"", "2 servers"],
        ),
        (
            Wanted {
                engine: external,
                start_timeout: std::time::Duration::from_millis(1),
                ..base()
            },
            &["server-1", "is not ready"],
        ),
    ] {
        let error = format!("{:#}", Deployment::start(&wanted).await.unwrap_err());
        for piece in pieces {
            assert!(error.contains(piece), "{piece} is not said: {error}");
        }
        assert_eq!(left(dir), [""; 0], "{error}");
    }
}

#[tokio::test]
async fn an_end_that_nobody_wanted_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::start(&wanted(folder.path())).await.unwrap();
    let command = &deployment.processes()[1].command;
    let pid = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .find_map(|process| {
            let said = std::fs::read(process.path().join("cmdline")).ok()?;
            let said = String::from_utf8_lossy(&said).replace('\0', " ");
            (said.trim() == command).then(|| process.file_name().to_str().unwrap().parse().unwrap())
        });
    kill(Pid::from_raw(pid.unwrap()), Signal::SIGKILL).unwrap();
    let error = deployment.ended().await.to_string();
    for piece in [
        "server-2 ended (signal: 9",
        "somebody killed it",
        "logs/server-2.log",
    ] {
        assert!(error.contains(piece), "{error}");
    }
    // Ended on purpose is no news.
    deployment.handle().kill(0).await.unwrap();
    tokio::select! {
        biased;
        error = deployment.ended() => panic!("{error}"),
        () = tokio::task::yield_now() => {}
    }
    deployment.stop().await;
    assert_eq!(left(folder.path()), [""; 0]);
}

#[tokio::test]
async fn servers_that_run_already_are_neither_started_nor_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let sims = [sim(|_| {}), sim(|_| {})];
    let urls = sims
        .iter()
        .map(|sim| format!("http://{}/", sim.addr()))
        .collect();
    let wanted = Wanted {
        engine: Engine::External { urls },
        hops: true,
        ..wanted(folder.path())
    };
    let deployment = Deployment::start(&wanted).await.unwrap();
    let table = send(
        &deployment,
        &folder.path().join("run"),
        &["--num-prompts", "10"],
    )
    .await;
    assert_eq!(
        words(&table, "host"),
        sims.iter().map(|sim| sim.addr().to_string()).collect()
    );
    let through = Wanted {
        router: Router::External {
            url: deployment.target().to_owned(),
        },
        engine: Engine::External { urls: Vec::new() },
        hops: false,
        dir: folder.path().join("second"),
        ..wanted
    };
    let second = Deployment::start(&through).await.unwrap();
    assert_eq!(
        send(
            &second,
            &folder.path().join("run-2"),
            &["--num-prompts", "5"]
        )
        .await
        .len(),
        5
    );
    second.stop().await;
    deployment.stop().await;
    assert_eq!(left(folder.path()), [""; 0]);
    assert_eq!(sims.iter().map(|sim| sim.served().len()).sum::<usize>(), 15);
}

/// Where the parent that is to be killed has its folder.
const PARENT: &str = "QUEUESCOPE_TEST_PARENT";

#[tokio::test]
async fn the_children_of_a_parent_that_is_killed_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "experiment::launch::a_parent"])
        .env(PARENT, folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ready = folder.path().join("ready");
    until("its children", || ready.exists()).await;
    assert_eq!(left(folder.path()).len(), 4);
    parent.kill().unwrap();
    parent.wait().unwrap();
    until("their end", || left(folder.path()).is_empty()).await;
}

#[tokio::test]
#[ignore = "no test: the parent that another test kills"]
async fn a_parent() {
    let Some(dir) = std::env::var_os(PARENT) else {
        return;
    };
    let dir = Path::new(&dir);
    let router = Router::SglangRouter {
        program: router(),
        policy: "random".into(),
        flags: Vec::new(),
    };
    let deployment = Deployment::start(&Wanted {
        router,
        hops: true,
        ..wanted(dir)
    })
    .await
    .unwrap();
    std::fs::write(dir.join("ready"), "").unwrap();
    std::future::pending::<()>().await;
    drop(deployment);
}

/// A real SGLang on CPU, as in `scripts/real-sglang.sh`: started, killed and started again, and stopped while it starts; of
/// its own children nothing is left either.
#[tokio::test]
#[ignore = "needs a real SGLang: REALSGL=FOLDER with venv and model, and what its CPU engine needs in the environment"]
async fn a_real_sglang_comes_and_goes() {
    let real = PathBuf::from(std::env::var_os("REALSGL").expect("REALSGL is not set"));
    let folder = tempfile::tempdir().unwrap();
    let more = "--device cpu --dtype float32 --attention-backend torch_native --max-total-tokens 16384 \
                --context-length 2048 --served-model-name tiny-llama";
    let settings = Sglang {
        model_path: real.join("model").display().to_string(),
        max_running_requests: Some(4),
        mem_fraction_static: Some(0.1),
        enable_metrics: true,
        more: more.split_whitespace().map(str::to_owned).collect(),
        ..Sglang::default()
    };
    let sglang = |settings: Sglang| Engine::Sglang {
        python: real.join("venv/bin/python"),
        settings,
    };
    let one = |engine: Engine| Wanted {
        start_timeout: engine.start_timeout(),
        engine,
        servers: 1,
        router: Router::None,
        ..wanted(folder.path())
    };
    for (wrong, piece) in [
        (
            Sglang {
                model_path: "/no/such/model".into(),
                ..settings.clone()
            },
            "the model was not found",
        ),
        (
            Sglang {
                more: vec!["--no-such-flag".into()],
                ..settings.clone()
            },
            "it does not know an argument",
        ),
    ] {
        let error = Deployment::start(&one(sglang(wrong)))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(piece), "{error}");
        assert_eq!(left(folder.path()), [""; 0]);
    }
    let wanted = one(sglang(settings));
    let deployment = Deployment::start(&wanted).await.unwrap();
    assert!(left(folder.path()).len() > 2, "its children are not seen");
    let load = ["--num-prompts", "5"];
    let table = send(&deployment, &folder.path().join("run"), &load).await;
    assert_eq!(words(&table, "outcome"), BTreeSet::from(["ok".to_owned()]));
    assert!(
        table
            .numbers("pure_queue_time")
            .iter()
            .all(|waited| waited.is_finite())
    );
    let servers = deployment.handle();
    servers.kill(0).await.unwrap();
    assert_eq!(left(folder.path()), ["queuescope\n"]);
    servers.start(0).unwrap();
    servers.ready(0).await.unwrap();
    let table = send(&deployment, &folder.path().join("again"), &load).await;
    assert_eq!(words(&table, "outcome"), BTreeSet::from(["ok".to_owned()]));
    let hosts = hosts(&deployment);
    deployment.stop().await;
    assert_nothing_is_left(folder.path(), &hosts);
    // Given up when its children are there.
    let dir = folder.path().to_owned();
    tokio::select! {
        started = Deployment::start(&wanted) => panic!("{started:?}"),
        () = until("its children", || left(&dir).len() > 1) => {}
    }
    assert_eq!(left(folder.path()), [""; 0]);
}
