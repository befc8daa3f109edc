//! A demo that goes on until it is told to end, for tools that look at a deployment as it runs.

use serde_json::{Value, json};

use crate::clock::Clock;
use crate::experiment::launch::{Deployment, Router};
use crate::traffic::Stop;
use crate::traffic::folder::{Folder, Made};

use super::load;
use super::{Args, RECORDS, port, say};

/// Flags of the servers, a line each: a usual one, one of the same model that is slow, and one of a larger model.
const SERVERS: &str = "\
--model demo-8b --max-running-requests 8 --prefill-tokens-per-s 8000 --decode-step-ms 15
--model demo-8b --max-running-requests 8 --prefill-tokens-per-s 4000 --decode-step-ms 30
--model demo-70b --max-running-requests 4 --prefill-tokens-per-s 4000 --decode-step-ms 30";
/// Flags of all of them. The slow one rejects requests beyond so many waiting ones.
const ALL: &str = "--tokenize-ms 2 --max-queued-requests 30";
/// The proxy's own rows, of which at most two files stay.
const RECORDS_MB: f64 = 20.0;
/// What Prometheus is to scrape, as its `file_sd_configs` reads it.
const TARGETS: &str = "targets.json";
/// Requests that the router sends on at once, so that its queue can be seen too.
const AT_ONCE: i64 = 26;
/// Of a real router: requests that may wait in it; it answers 429 to more.
const ROUTER: &str = "--queue-size 400 --log-level error";

/// Runs until Ctrl-C or SIGTERM.
///
/// # Errors
/// Something could not start, or ended.
pub(super) async fn run(folder: &Folder, args: &Args, clock: &Clock) -> anyhow::Result<()> {
    let stop = Stop::new();
    stop.on_signals()?;
    let Made { dir, note } = folder.make(&[RECORDS, TARGETS], clock.now())?;
    let sims: Vec<String> = SERVERS
        .lines()
        .map(|flags| format!("{flags} {ALL}"))
        .collect();
    let mut spec = super::spec(&dir, &sims, AT_ONCE)?;
    spec.proxy_admin = args.admin;
    spec.proxy
        .insert("records_rotate_mb".to_owned(), RECORDS_MB.into());
    spec.proxy.insert("records_keep".to_owned(), 1.into());
    let tenants = toml::Value::from(vec!["x-tenant"]);
    spec.proxy.insert("label_headers".to_owned(), tenants);
    if let Some(program) = &args.router {
        spec.proxy.remove("max_concurrent_requests");
        let flags = format!("--max-concurrent-requests {AT_ONCE} {ROUTER}");
        spec.router = Router::SglangRouter {
            program: program.clone(),
            policy: "round_robin".to_owned(),
            flags: flags.split(' ').map(str::to_owned).collect(),
        };
    }
    let deployment = tokio::select! {
        started = Deployment::start(&spec) => started?,
        () = stop.stopped() => return Ok(()),
    };
    let targets = targets(&deployment);
    std::fs::write(dir.join(TARGETS), format!("{targets:#}\n"))?;
    let (front, shown) = (deployment.target.clone(), dir.display());
    let admin = deployment.admin.map(|admin| format!("http://{admin}"));
    let admin = admin.unwrap_or_default();
    let router = match args.router {
        Some(_) => " -> router",
        None => " (the router)",
    };
    let mut text = format!("load -> front {front}{router} ->\n");
    for (server, flags) in deployment.servers.iter().zip(SERVERS.lines()) {
        let model = flags.split(' ').nth(1).unwrap_or_default();
        let (name, url) = (&server.file.name, &server.file.url);
        let hop = server.hop.map_or(0, |hop| hop.port());
        text.push_str(&format!(
            "    hop {name} :{hop} -> simulated SGLang {url} ({model})\n"
        ));
    }
    say(&format!(
        "{text}live page {admin}/\nmetrics  {admin}/metrics\n\
         targets  {shown}/{TARGETS} (for Prometheus' file_sd_configs)\nrecords  {shown}/{RECORDS}\n\
         It goes on until Ctrl-C. A day takes four minutes; server-2 is slow.\n"
    ));
    if let Some(note) = note {
        say(&format!("note: {note}\n"));
    }
    let why = tokio::select! {
        () = stop.stopped() => Ok(()),
        error = deployment.ended() => Err(error),
        sent = load::run(&front, clock) => sent,
    };
    // Requests of somebody else's may still go on; another signal ends them too.
    tokio::select! {
        () = deployment.stop() => {}
        () = stop.aborted() => {}
    }
    why
}

/// For Prometheus: each server under the name of its hop, so that its metrics stand beside ours.
fn targets(deployment: &Deployment) -> Value {
    let group = |addr: &str, labels: Value| json!({"targets": [addr], "labels": labels});
    let plain = |addr: Option<std::net::SocketAddr>, job: &str| {
        addr.map(|addr| group(&addr.to_string(), json!({"job": job})))
    };
    let servers = deployment.servers.iter().map(|server| {
        let addr = format!("127.0.0.1:{}", port(&server.file.url));
        group(&addr, json!({"job": "sglang", "worker": server.file.name}))
    });
    let ours = plain(deployment.admin, "queuescope").into_iter();
    ours.chain(servers)
        .chain(plain(deployment.router_metrics, "router"))
        .collect()
}
