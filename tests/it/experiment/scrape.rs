//! Metrics of servers and GPUs during a run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use queuescope::clock::{Clock, Stamp};
use queuescope::experiment::launch::Access;
use queuescope::experiment::scrape::Scraper;
use queuescope::report::files::{SERIES, SeriesRow, ServerFile};

use super::started::executable;
use crate::support::assert_says;
use crate::support::tls::Authority;
use crate::support::upstream::{Upstream, refusing};
use crate::support::wire::{json_response, until};

fn server(name: &str, url: String) -> ServerFile {
    ServerFile {
        name: name.to_owned(),
        url,
        ..ServerFile::default()
    }
}

/// A program in `dir` that stands for `nvidia-smi`: no real GPU was there.
fn smi(dir: &Path, script: &str) -> Option<PathBuf> {
    Some(executable(&dir.join("nvidia-smi"), script))
}

/// What was written of a run that began two seconds ago, once that is enough, and what there is to say.
async fn scraped(
    servers: &[ServerFile],
    access: Access,
    smi: Option<PathBuf>,
    is_enough: impl Fn(String) -> bool,
) -> (Vec<SeriesRow>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(SERIES);
    let (clock, moving) = Clock::manual(Stamp::from_nanos(0));
    moving.advance(Duration::from_millis(2500));
    let began = Stamp::from_nanos(500_000_000);
    let mut scraper = Scraper::new(servers, access, smi);
    let text = || std::fs::read_to_string(&file).unwrap_or_default();
    tokio::select! {
        error = scraper.run(dir.path(), began, &clock) => panic!("{error:?}"),
        () = until("enough", || is_enough(text())) => {}
    }
    let rows = csv::Reader::from_path(&file).unwrap().into_deserialize();
    (rows.map(Result::unwrap).collect(), scraper.notes())
}

/// Also those of a server behind TLS that wants a key: it is asked as the load is sent.
#[tokio::test]
async fn metrics_of_servers_and_gpus_are_written_with_their_time() {
    let page = "sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_queue_reqs{tp_rank=\"0\"} 1\n";
    let upstream = Upstream::always(json_response(page)).await;
    let authority = Authority::new("ours");
    let face = authority.face(&["localhost"], upstream.addr).await;
    let mut access = Access::default();
    access.tls.ca = Some(authority.file());
    access.api_key = Some("Bearer S3cret".parse().unwrap());
    let url = format!("https://localhost:{}", face.addr.port());
    let dir = tempfile::tempdir().unwrap();
    let gpus = smi(dir.path(), "echo \"$@\" > \"$0.flags\"; echo '0, 37, 1024'");
    // Each asks for itself: one may tell twice before the other does.
    let have_both = |text: String| text.contains(",gpu,") && text.contains(",metrics,");
    let (rows, notes) = scraped(&[server("server-1", url)], access, gpus, have_both).await;
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
    assert_eq!(notes, [""; 0]);
    let flags = std::fs::read_to_string(dir.path().join("nvidia-smi.flags")).unwrap();
    assert_says(&flags, "utilization.gpu,memory.used");
    let key = upstream.seen()[0].header("authorization");
    assert_eq!(key.unwrap(), "Bearer S3cret");
}

#[tokio::test]
async fn a_failed_scrape_leaves_a_gap_and_has_a_note() {
    let status = |line: &str| format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n");
    let off = Upstream::always(status("404 Not Found")).await;
    let silent = Upstream::always(json_response("up 1\n")).await;
    let denied = Upstream::always(status("401 Unauthorized")).await;
    let down = refusing().await;
    let servers = [
        ("denied", denied.addr),
        ("down", down),
        ("off", off.addr),
        ("silent", silent.addr),
    ];
    let servers = servers.map(|(name, addr)| server(name, format!("http://{addr}")));
    let dir = tempfile::tempdir().unwrap();
    let gpus = smi(dir.path(), "echo . >> \"$0.done\"; exit 9");
    // When they are asked the second time the first answer has been taken in.
    let asked = || std::fs::read(dir.path().join("nvidia-smi.done")).unwrap_or_default();
    let twice = |_| asked().len() >= 4 && off.seen().len() >= 2 && silent.seen().len() >= 2;
    let (rows, notes) = scraped(&servers, Access::default(), gpus, twice).await;
    assert_eq!(rows, []);
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
