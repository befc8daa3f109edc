//! What a plan says of servers, and what they tell, also by metrics of theirs and of GPUs during a run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::header::AUTHORIZATION;
use nix::sys::signal::Signal;
use queuescope::clock::{Clock, Stamp};
use queuescope::experiment::launch::{Access, Deployment, DeploymentSpec, EngineName, Router};
use queuescope::experiment::scrape::Scraper;
use queuescope::report::files::{SERIES, SeriesRow, ServerFile};

use super::{Planned, end, executable, left, running, spec, until};
use crate::support::assert_says;
use crate::support::generator::{flags, sim};
use crate::support::process::{Done, PROGRAM, queuescope, run_aside};
use crate::support::proxy::{assert_cells, number, rows};
use crate::support::tls::{Authority, TlsFace};
use crate::support::upstream::{Seen, Step, Upstream, refusing};
use crate::support::wire::{self, json_response};

const BUSY: &str = "400 Bad Request";

/// A server that answers the questions to empty its cache in turn with these, and all others well.
async fn flushed_with(answers: &'static [&'static str]) -> Upstream {
    let asked = AtomicUsize::new(0);
    Upstream::start(move |_, seen| {
        let answer = match is_flush(seen) {
            true => {
                let n = asked.fetch_add(1, Ordering::Relaxed);
                let status = answers[n.min(answers.len() - 1)];
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into_bytes()
            }
            // What a router says of its servers.
            false => json_response(r#"{"workers": [{"is_healthy": true}]}"#),
        };
        vec![Step::Send(answer)]
    })
    .await
}

fn is_flush(seen: &Seen) -> bool {
    seen.head.starts_with("POST /flush_cache")
}

/// Servers that run already, and nothing before them.
fn outside(urls: &[String], dir: &Path) -> DeploymentSpec {
    DeploymentSpec {
        engine: EngineName::External,
        servers: running(urls),
        router: Router::None,
        front: false,
        ..spec(dir)
    }
}

#[tokio::test]
async fn caches_of_servers_that_ran_before_are_emptied() {
    let folder = tempfile::tempdir().unwrap();
    for (answers, kept) in [
        (&[BUSY, BUSY, "200 OK"][..], None),
        (&["404 Not Found"][..], Some("it answered 404")),
    ] {
        let server = flushed_with(answers).await;
        let url = format!("http://{}", server.addr);
        let mut direct = outside(std::slice::from_ref(&url), folder.path());
        let key = (AUTHORIZATION, "Bearer S3cret".parse().unwrap());
        direct.access.headers = vec![key];
        // Behind a router that runs already, of whose servers nothing is said: it is asked in their place.
        let routed = DeploymentSpec {
            servers: Vec::new(),
            router: Router::External,
            router_url: Some(url),
            ..direct.clone()
        };
        for (wanted, asks) in [(direct, answers.len()), (routed, answers.len() + 1)] {
            let deployment = Deployment::start(&wanted).await.unwrap();
            // What runs already is neither started nor stopped.
            assert_eq!(left(folder.path()), [""; 0]);
            let told = &deployment.kept_caches;
            match kept {
                None => assert_eq!(told, &[""; 0]),
                Some(why) => assert!(told.len() == 1 && told[0].ends_with(why), "{told:?}"),
            }
            // Behind a key, too.
            let by_key = |seen: &&Seen| seen.header("authorization").unwrap() == "Bearer S3cret";
            let seen = server.seen();
            let asked = seen.iter().filter(|seen| is_flush(seen));
            assert_eq!(asked.filter(by_key).count(), asks);
            deployment.stop().await;
        }
    }
}

/// A router, as far as a deployment asks: tries its worker, then hands all on to it, also the question for its workers.
const ROUTER: &str = "\"$QUEUESCOPE\" probe \"${13}\"\nexec \"$QUEUESCOPE\" proxy --listen \"$3:$5\" --admin 127.0.0.1:0 --upstream \"${13}\"";

#[tokio::test]
async fn caches_are_empty_before_a_router_asks_servers_through_their_hops() {
    let folder = tempfile::tempdir().unwrap();
    let script = ROUTER.replace("$QUEUESCOPE", PROGRAM);
    let program = executable(&folder.path().join("smg"), &script);
    // It takes its time: long enough for a router to be there, were one started meanwhile.
    let server = flushed_with(&[BUSY, BUSY, BUSY, BUSY, "200 OK"]).await;
    let wanted = DeploymentSpec {
        router: Router::SglangRouter,
        router_program: Some(program),
        policy: "random".into(),
        front: true,
        hops: true,
        ..outside(&[format!("http://{}", server.addr)], folder.path())
    };
    let deployment = Deployment::start(&wanted).await.unwrap();
    assert_eq!(deployment.kept_caches, [""; 0]);
    let seen = server.seen();
    let paths = seen.iter().filter_map(|seen| seen.head.split(' ').nth(1));
    let (flush, asked) = ("/flush_cache", "/generate");
    let paths: Vec<&str> = paths.filter(|path| [flush, asked].contains(path)).collect();
    // Only then comes what came by router and hop.
    let (before, after) = paths.split_at(5);
    assert_eq!(before, [flush; 5]);
    let is_flushed = after.contains(&flush);
    assert!(after.contains(&asked) && !is_flushed, "{after:?}");
    deployment.stop().await;
}

#[test]
fn a_run_that_kept_a_cache_is_marked() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(flushed_with(&["404 Not Found"]));
    let plan = Planned::new("max_concurrency = [1, 2]\nnum_prompts = 5");
    let url = format!("http://{}", server.addr);
    let done = plan.run("node", &["--engine", "external", "--servers", &url]);
    for run in ["01-max_concurrency=1", "02-max_concurrency=2"] {
        assert!(plan.run_file(run).unwrap().kept_cache, "{}", done.err);
    }
    let told = "was not emptied before the run: it answered 404";
    assert_eq!(done.err.matches(told).count(), 2, "{}", done.err);
}

/// `queuescope node` of five requests to a server that runs behind this face, with these flags.
async fn node_at(face: &TlsFace, more: &str) -> Done {
    let folder = tempfile::tempdir().unwrap();
    let (port, dir) = (face.addr.port(), folder.path().display());
    let line = format!(
        "node --engine external --servers https://localhost:{port} --num-prompts 5 --request-rate 100 \
         --random-input-len 8 --random-output-len 4 --output-dir {dir}/out {more}"
    );
    run_aside(queuescope(&flags(&line))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_under_tls_that_runs_already_is_tested_as_its_certificate_is_to_be_taken() {
    let server = sim(|_| ());
    let ca = Authority::new("ours");
    let face = ca.face(&["localhost"], server.addr()).await;
    let file = ca.file();
    let trusting = format!("--ca {}", file.display());
    for more in ["--insecure", &trusting, &format!("{trusting} --front")] {
        let done = node_at(&face, more).await;
        done.assert_ran();
        assert_says(&done.out, "5 requests in");
    }
    // A certificate that is refused is told once, in words and with its remedy.
    let theirs = Authority::of_a_server("theirs", &["localhost"]);
    let face = theirs.own_face(server.addr()).await;
    let done = node_at(&face, &format!("--start-timeout-s 60 {trusting}")).await;
    done.assert_status(&[1]);
    let said = format!("{} {}", done.out, done.err);
    let told = format!(
        "https://localhost:{} is not ready (connect to localhost:{0}: the TLS handshake failed: \
         invalid peer certificate: Other(OtherError(CaUsedAsEndEntity)); does the server speak TLS there? ",
        face.addr.port()
    );
    assert_eq!(said.matches(&told).count(), 1, "{said}");
    for wrong in ["start the server", "for 1 s)"] {
        assert!(!said.contains(wrong), "{said}");
    }
}

/// Checks the generator's own file; `demo.rs` checks the proxy's.
#[test]
fn a_chat_experiment_shows_the_servers_queue() {
    let plan = Planned::new(
        "backend = 'sglang-oai-chat'\nmax_running_requests = 1\nrequest_rate = 100\nnum_prompts = 20",
    );
    plan.ran("node", &[]);
    let rows = rows(&plan.path("runs/01-run/requests.csv"));
    assert_eq!(rows.len(), 20);
    let host = &plan.run_file("01-run").unwrap().servers[0].host;
    for row in &rows {
        assert_cells(row, [("timing_source", "log"), ("host", host)]);
        // On the generator's own clock: between what it sent and what it read.
        let end = number(row, "queue_time_end");
        let around = number(row, "arrival_time")..=number(row, "finish_time");
        assert!(around.contains(&end), "{end} {around:?}");
    }
    let waited = rows.iter().map(|row| number(row, "pure_queue_time"));
    let waited: Vec<f64> = waited.collect();
    assert!(waited.iter().all(|waited| *waited >= 0.0), "{waited:?}");
    // One at a time.
    assert!(waited.iter().any(|waited| *waited > 0.05), "{waited:?}");
    let summary = std::fs::read(plan.path("runs/01-run/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["latency"]["pure_queue_time"]["count"], 20);
}

#[test]
fn a_start_that_takes_long_is_stopped() {
    let plan = Planned::by_script("echo > began; exec sleep 1000", "num_prompts = 5");
    let child = plan.begin("node", &["--engine", "sglang"]);
    let began = plan.folder.path().join("began");
    until("the start", || began.exists());
    assert_eq!(end(child, Signal::SIGINT), Some(130));
    plan.assert_nothing_is_left();
}

fn server(name: &str, url: String) -> ServerFile {
    ServerFile {
        name: name.to_owned(),
        url,
        ..ServerFile::default()
    }
}

/// What was written of a run that began two seconds ago, once that is enough, and what there is to say.
async fn scraped(
    servers: &[ServerFile],
    access: Access,
    smi: PathBuf,
    is_enough: impl Fn(String) -> bool,
) -> (Vec<SeriesRow>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(SERIES);
    let (clock, moving) = Clock::manual(Stamp::from_nanos(0));
    moving.advance(Duration::from_millis(2500));
    let began = Stamp::from_nanos(500_000_000);
    let mut scraper = Scraper::new(servers, access, Some(smi));
    let text = || std::fs::read_to_string(&file).unwrap_or_default();
    tokio::select! {
        error = scraper.run(dir.path(), began, &clock) => panic!("{error:?}"),
        () = wire::until("enough", || is_enough(text())) => {}
    }
    let rows = csv::Reader::from_path(&file).unwrap().into_deserialize();
    (rows.map(Result::unwrap).collect(), scraper.notes())
}

/// In place of `nvidia-smi`, as no real GPU was there: it keeps its flags and answers once, and fails from then on.
const SMI: &str = "[ ! -e \"$0.flags\" ] || { echo . >> \"$0.failed\"; exit 9; }\n\
    echo \"$@\" > \"$0.flags\"; echo '0, 37, 1024'";

/// Also those of a server behind TLS that wants a key: it is asked as the load is sent. A scrape that fails leaves a gap, and has a note.
#[tokio::test]
async fn metrics_of_servers_and_gpus_are_written_with_their_time() {
    let page = "sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_queue_reqs{tp_rank=\"0\"} 1\n";
    let upstream = Upstream::always(json_response(page)).await;
    let authority = Authority::new("ours");
    let face = authority.face(&["localhost"], upstream.addr).await;
    let mut access = Access::default();
    access.tls.ca = Some(authority.file());
    access.headers = vec![(AUTHORIZATION, "Bearer S3cret".parse().unwrap())];
    let status = |line: &str| format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n");
    let off = Upstream::always(status("404 Not Found")).await;
    let silent = Upstream::always(json_response("up 1\n")).await;
    let denied = Upstream::always(status("401 Unauthorized")).await;
    let servers = [
        ("denied", denied.addr),
        ("down", refusing().await),
        ("off", off.addr),
        ("silent", silent.addr),
    ];
    let servers = servers.map(|(name, addr)| server(name, format!("http://{addr}")));
    let url = format!("https://localhost:{}", face.addr.port());
    let servers = [&servers[..], &[server("server-1", url)]].concat();
    let dir = tempfile::tempdir().unwrap();
    let smi = executable(&dir.path().join("nvidia-smi"), SMI);
    // When one is asked again its last answer has been taken in.
    let failed = || std::fs::read(dir.path().join("nvidia-smi.failed")).unwrap_or_default();
    let is_enough = |text: String| {
        let have_told = text.contains(",gpu,") && text.contains(",metrics,");
        have_told && failed().len() >= 4 && off.seen().len() >= 2 && silent.seen().len() >= 2
    };
    let (rows, mut notes) = scraped(&servers, access, smi, is_enough).await;
    // A busy machine may be late once.
    let late = "(the last: no answer within 900 ms)";
    notes.retain(|note| !(note.starts_with("server-1: ") && note.ends_with(late)));
    let values = rows.iter().map(|row| {
        let (source, server, metric) = (&row.source, &row.server, &row.metric);
        format!("{} {source} {server} {metric} {}", row.time, row.value)
    });
    let values: BTreeSet<String> = values.collect();
    let expected = [
        "2 gpu gpu-0 gpu_memory 1073741824",
        "2 gpu gpu-0 gpu_use 0.37",
        "2 metrics server-1 queued 1",
        "2 metrics server-1 running 3",
    ];
    assert!(values.iter().eq(&expected), "{values:?}");
    let flags = std::fs::read_to_string(dir.path().join("nvidia-smi.flags")).unwrap();
    assert_says(&flags, "utilization.gpu,memory.used");
    let key = upstream.seen()[0].header("authorization");
    assert_eq!(key.unwrap(), "Bearer S3cret");
    let metrics = "start the server with --enable-metrics";
    for (note, pieces) in notes.iter().zip([
        "GPUs: |(the last: exit status: 9)",
        "denied: |(the last: status 401)",
        "down: |failed, which leaves gaps (the last: ",
        &format!("off: |(the last: status 404; {metrics})"),
        &format!("silent: |(the last: no such value; {metrics})"),
    ]) {
        for piece in pieces.split('|') {
            assert_says(note, piece);
        }
    }
    assert_eq!(notes.len(), 5);
    // Nobody knows how one was started that was not there.
    assert!(!notes[2].contains(metrics), "{}", notes[2]);
}
