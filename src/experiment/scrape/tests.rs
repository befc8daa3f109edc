use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::report::table::Cell;

/// A server whose every page is `answer`; tells of each request before it answers.
async fn serving(answer: String) -> (String, mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let (asked, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let _ = asked.send(());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, told)
}

fn answer(status: &str, page: &str) -> String {
    let length = page.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{page}")
}

/// What is needed to ask by hand: rows come out at the second.
fn asking() -> (
    Asking,
    mpsc::UnboundedReceiver<Vec<SeriesRow>>,
    watch::Sender<bool>,
) {
    let (rows, told) = mpsc::unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let (clock, moving) = Clock::manual(Stamp::from_nanos(0));
    moving.advance(Duration::from_millis(2500));
    let asking = Asking {
        began: Stamp::from_nanos(500_000_000),
        clock,
        rows,
        stop: stopped,
    };
    (asking, told, stop)
}

#[tokio::test]
async fn a_run_is_written_as_it_goes_and_ordered_with_what_is_counted() {
    let page = "sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_queue_reqs{tp_rank=\"0\"} 1\n";
    let (url, mut asked) = serving(answer("200 OK", page)).await;
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let targets = vec![("server-1".to_owned(), url)];
    let scraper = Scraper::start(targets, None, dir.path(), clock.now(), &clock).unwrap();
    // The second time it is asked, what it told the first time has been taken in.
    asked.recv().await.unwrap();
    asked.recv().await.unwrap();
    assert_eq!(scraper.stop().await, ScrapeEnd::default());

    let mut table = Table::default();
    table.push([
        ("req_id", Cell::Id("x-0")),
        ("host", Cell::Word("h:1")),
        ("queue_time_end", Cell::Number(0.0)),
        ("finish_time", Cell::Number(3600.0)),
    ]);
    table.finish(None);
    let servers = [ServerFile {
        name: "server-1".to_owned(),
        host: "h:1".to_owned(),
        ..ServerFile::default()
    }];
    let notes = add_records(dir.path(), &table, &servers).unwrap();
    assert_eq!(notes.len(), 3, "{notes:?}");
    let mut file = csv::Reader::from_path(dir.path().join(SERIES)).unwrap();
    let rows: Vec<SeriesRow> = file.deserialize().collect::<Result<_, _>>().unwrap();
    assert!(rows.is_sorted_by(|a, b| a.time <= b.time));
    let told = rows.iter().find(|row| row.source == "metrics").unwrap();
    assert_eq!(
        (told.server.as_str(), told.metric.as_str(), told.value),
        ("server-1", "running", 3.0)
    );
}

#[tokio::test]
async fn a_server_that_is_down_leaves_a_gap_and_is_spoken_of() {
    // Nobody listens there any more.
    let free = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let (off, _asked) = serving(answer("404 Not Found", "")).await;
    let (silent, _asked) = serving(answer("200 OK", "up 1\n")).await;
    for (url, said) in [
        (
            format!("http://{free}/metrics"),
            "failed, which leaves gaps (the last: Connection refused",
        ),
        (
            off,
            "(the last: 404 Not Found: start the server with --enable-metrics)",
        ),
        (silent, "1 of 1 pages of"),
    ] {
        let (asking, mut told, stop) = asking();
        let target = tokio::spawn(Target::server("server-2".to_owned(), url).ask(asking));
        assert_eq!(told.recv().await, Some(Vec::new()));
        stop.send_replace(true);
        let note = target.await.unwrap().unwrap();
        assert!(
            note.starts_with("server-2: 1 of 1") && note.contains(said),
            "{note}"
        );
    }
}

#[tokio::test]
async fn answers_are_stamped_when_they_are_there() {
    let (url, _asked) = serving(answer("200 OK", "DCGM_FI_DEV_GPU_UTIL{gpu=\"3\"} 50\n")).await;
    let (asking, mut told, stop) = asking();
    let target = tokio::spawn(Target::dcgm(url).ask(asking));
    let rows = told.recv().await.unwrap();
    stop.send_replace(true);
    assert_eq!(
        (rows[0].time, rows[0].server.as_str(), rows[0].value),
        (2.0, "gpu-3", 0.5)
    );
    assert_eq!(target.await.unwrap(), None);
}

/// A program in `dir` that stands for `nvidia-smi`.
fn program(dir: &Path, script: &str) -> PathBuf {
    let path = dir.join("nvidia-smi");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// No real GPU was there: a program that speaks as `nvidia-smi` does stands for it.
#[tokio::test]
async fn gpus_are_read_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let smi = program(
        dir.path(),
        "echo \"$@\" > \"$0.flags\"; echo '0, 37, 1024'; exec sleep 1000",
    );
    let (asking, mut told, stop) = asking();
    let reading = tokio::spawn(gpu::nvidia_smi(smi.clone(), asking));
    let rows = told.recv().await.unwrap();
    assert_eq!(
        (rows[0].time, rows[0].metric.as_str(), rows[0].value),
        (2.0, gpu::USE, 0.37)
    );
    stop.send_replace(true);
    assert_eq!(reading.await.unwrap(), None);
    let flags = std::fs::read_to_string(smi.with_extension("flags")).unwrap();
    assert!(flags.contains("--loop=1"), "{flags}");
}

#[tokio::test]
async fn a_program_that_cannot_tell_is_spoken_of() {
    let dir = tempfile::tempdir().unwrap();
    let fails = program(dir.path(), "echo 'NVIDIA-SMI has failed'; exit 9");
    let (asked, _told, _stop) = asking();
    let note = gpu::nvidia_smi(fails, asked).await.unwrap();
    assert!(
        note.contains("ended (exit status: 9) after 0 lines"),
        "{note}"
    );
    let (asked, _told, _stop) = asking();
    let note = gpu::nvidia_smi(PathBuf::from("/nowhere/nvidia-smi"), asked)
        .await
        .unwrap();
    assert!(note.contains("No such file"), "{note}");
}
