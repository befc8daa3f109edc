use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;
use crate::report::files::SeriesRow;
use crate::traffic::client::TlsArgs;

/// A server whose every page is `answer`, by TLS where it is given; tells of each request after it was answered.
async fn serving(
    answer: String,
    tls: Option<TlsAcceptor>,
) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!(
        "{scheme}://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    let (asked, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let head = match &tls {
                Some(tls) => answered(tls.accept(stream).await.unwrap(), &answer).await,
                None => answered(stream, &answer).await,
            };
            let _ = asked.send(head);
        }
    });
    (url, told)
}

async fn answered(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, answer: &str) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    String::from_utf8(head).unwrap()
}

fn answer(status: &str, page: &str) -> String {
    let length = page.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{page}")
}

fn server(name: &str, url: String) -> ServerFile {
    ServerFile {
        name: name.to_owned(),
        url,
        ..ServerFile::default()
    }
}

/// The rows of a file, and what there is to say, when `seen` says so of what was asked: at second 2 of the run.
async fn scraped(
    servers: &[ServerFile],
    access: Access,
    smi: Option<PathBuf>,
    seen: impl AsyncFnOnce(&Path),
) -> (Vec<SeriesRow>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (clock, moving) = Clock::manual(Stamp::from_nanos(0));
    moving.advance(Duration::from_millis(2500));
    let began = Stamp::from_nanos(500_000_000);
    let mut scraper = Scraper::new(servers, access, smi);
    let file = dir.path().join(SERIES);
    tokio::select! {
        biased;
        () = scraper.run(dir.path(), began, &clock) => {}
        () = seen(&file) => {}
    }
    let notes = scraper.notes();
    let mut file = csv::Reader::from_path(dir.path().join(SERIES)).unwrap();
    let header = csv::StringRecord::from(vec!["time", "source", "server", "metric", "value"]);
    assert_eq!(file.headers().unwrap(), &header);
    (file.deserialize().collect::<Result<_, _>>().unwrap(), notes)
}

/// Waits until the file has a row.
async fn has_row(file: &Path) {
    while std::fs::read_to_string(file).unwrap().lines().count() < 2 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn answers_are_written_as_they_come_with_their_time() {
    let page = "sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_queue_reqs{tp_rank=\"0\"} 1\n";
    let (url, _asked) = serving(answer("200 OK", page), None).await;
    let servers = [server("server-1", url)];
    let both = async |file: &Path| {
        while std::fs::read_to_string(file).unwrap().lines().count() < 3 {
            tokio::task::yield_now().await;
        }
    };
    let (mut rows, notes) = scraped(&servers, Access::default(), None, both).await;
    rows.sort_by(|a, b| (&a.source, &a.metric).cmp(&(&b.source, &b.metric)));
    let seen = rows.iter();
    let seen: Vec<_> = seen
        .map(|row| (row.time, &*row.server, &*row.metric, row.value))
        .collect();
    assert_eq!(
        seen,
        [
            (2.0, "server-1", "queued", 1.0),
            (2.0, "server-1", "running", 3.0)
        ]
    );
    assert_eq!(notes, [""; 0]);
}

#[tokio::test]
async fn a_server_behind_tls_that_wants_a_key_is_asked_as_the_load_is_sent() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth();
    let config = config
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let tls = TlsAcceptor::from(Arc::new(config));
    let page = answer("200 OK", "sglang:num_running_reqs 3\n");
    let (url, mut asked) = serving(page, Some(tls)).await;
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), made.cert.pem()).unwrap();
    let access = Access {
        tls: TlsArgs {
            ca: Some(ca.path().to_owned()),
            insecure: false,
        },
        api_key: Some("Bearer S3cret".parse().unwrap()),
        headers: Vec::new(),
    };
    let servers = [server("server-1", url)];
    let (rows, notes) = scraped(&servers, access, None, has_row).await;
    assert_eq!((rows[0].value, notes.len()), (3.0, 0), "{notes:?}");
    let head = asked.recv().await.unwrap().to_lowercase();
    assert!(head.contains("authorization: bearer s3cret"), "{head}");
}

#[tokio::test]
async fn a_server_that_is_down_leaves_a_gap_and_is_spoken_of() {
    // Nobody listens there any more.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let down = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let (off, mut asked_off) = serving(answer("404 Not Found", ""), None).await;
    let (silent, mut asked_silent) = serving(answer("200 OK", "up 1\n"), None).await;
    let servers = [("down", down), ("off", off), ("silent", silent)];
    let servers = servers.map(|(name, url)| server(name, url));
    // When they are asked the second time the first answer has been taken in.
    let asked = async |_: &Path| {
        for _ in 0..2 {
            asked_off.recv().await.unwrap();
            asked_silent.recv().await.unwrap();
        }
    };
    let (rows, notes) = scraped(&servers, Access::default(), None, asked).await;
    assert_eq!(rows, []);
    assert!(!notes[0].contains("--enable-metrics"), "{}", notes[0]);
    for (note, name, said) in [
        (&notes[0], "down: ", "failed, which leaves gaps (the last: "),
        (
            &notes[1],
            "off: ",
            "(the last: status 404); start the server with --enable-metrics",
        ),
        (
            &notes[2],
            "silent: ",
            "(the last: no such value); start the server with --enable-metrics",
        ),
    ] {
        assert!(note.starts_with(name) && note.contains(said), "{note}");
    }
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
async fn gpus_are_asked_each_second() {
    let dir = tempfile::tempdir().unwrap();
    let smi = program(dir.path(), "echo \"$@\" > \"$0.flags\"; echo '0, 37, 1024'");
    let (rows, notes) = scraped(&[], Access::default(), Some(smi.clone()), has_row).await;
    let row = &rows[0];
    let seen = (&*row.source, &*row.server, &*row.metric, row.value);
    assert_eq!((row.time, seen), (2.0, ("gpu", "gpu-0", "gpu_use", 0.37)));
    assert_eq!(notes, [""; 0]);
    let flags = std::fs::read_to_string(smi.with_extension("flags")).unwrap();
    assert!(flags.contains("utilization.gpu,memory.used"), "{flags}");
}

#[tokio::test]
async fn a_program_that_cannot_tell_is_spoken_of() {
    let dir = tempfile::tempdir().unwrap();
    let fails = program(dir.path(), "echo . >> \"$0.done\"; exit 9");
    // When it is asked the second time the first answer has been taken in.
    let twice = async |_: &Path| {
        let done = || std::fs::read(fails.with_extension("done")).unwrap_or_default();
        while done().len() < 4 {
            tokio::task::yield_now().await;
        }
    };
    let (rows, notes) = scraped(&[], Access::default(), Some(fails.clone()), twice).await;
    assert_eq!(rows, []);
    assert!(
        notes[0].contains("(the last: exit status: 9); it has to report"),
        "{notes:?}"
    );
}
