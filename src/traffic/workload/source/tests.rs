use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::error::FAILED;

const CONTENT: &str = "[]\n";
/// The checksum of [`CONTENT`], by `sha256sum`.
const SUM: &str = "37517e5f3dc66819f61f5a7bb8ace1921282415f10551d2defa5c3eb0985b570";

/// Starts a server that gives the responses in turn, one per connection; returns its address and the requested paths.
async fn server(responses: Vec<String>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let requested = Arc::new(Mutex::new(Vec::new()));
    let paths = requested.clone();
    tokio::spawn(async move {
        for response in responses {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            paths.lock().unwrap().push(path);
            socket.write_all(response.as_bytes()).await.unwrap();
        }
    });
    (addr, requested)
}

fn response(status: &str, more: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\n{more}content-length: {length}\r\n\r\n{body}"
    )
}

fn files(folder: &Path) -> Vec<std::ffi::OsString> {
    let files = std::fs::read_dir(folder).unwrap();
    files.map(|file| file.unwrap().file_name()).collect()
}

#[tokio::test]
async fn a_file_is_downloaded_once_and_redirects_are_followed() {
    let found = response("200 OK", "", CONTENT);
    let (end, requested_end) = server(vec![found]).await;
    let (addr, requested) = server(vec![
        response("302 Found", "location: /b?c=d\r\n", "moved"),
        response("307 T", &format!("location: http://{end}/e\r\n"), ""),
    ])
    .await;
    let root = tempfile::tempdir().unwrap();
    let cache = root.path().join("deep/cache");
    let mirror = format!("http://{addr}/");
    let path = cached(&cache, &mirror, SUM).await.unwrap();
    assert_eq!(path, cache.join(NAME));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), CONTENT);
    let first = format!("{FOLDER}/{NAME}");
    assert_eq!(*requested.lock().unwrap(), [&*first, "/b?c=d"]);
    assert_eq!(*requested_end.lock().unwrap(), ["/e"]);
    assert_eq!(files(&cache), [NAME]);
    // The server is gone: the file is taken from the cache.
    let again = cached(&cache, &mirror, SUM).await;
    assert_eq!(again.unwrap(), path);
}

#[tokio::test]
async fn an_incomplete_or_wrong_file_is_not_kept_and_the_error_helps() {
    let cut = response("200 OK", "", CONTENT).replace("content-length: 3", "content-length: 9");
    let round = vec![response("301 M", "location: /a/set.json\r\n", ""); 11];
    let status = |status: &str| vec![response(status, "", "{}\n")];
    for (responses, part) in [
        (status("200 OK"), "but the published one has 37517e5f"),
        (vec![cut], "curl ended with exit status: 18"),
        (status("404 Not Found"), "curl ended with exit status: 22"),
        (round, "curl ended with exit status: 47"),
    ] {
        let (addr, _) = server(responses).await;
        let root = tempfile::tempdir().unwrap();
        let mirror = format!("http://{addr}");
        let error = cached(root.path(), &mirror, SUM).await.unwrap_err();
        let message = error.to_string();
        let url = format!("cannot download {mirror}{FOLDER}/{NAME}: ");
        let help = format!("put it at {}", root.path().join(NAME).display());
        let is_told =
            message.starts_with(&url) && message.contains(part) && message.ends_with(&help);
        assert!(is_told && error.code == FAILED, "{message}");
        assert_eq!(files(root.path()).len(), 0, "{part}");
    }
}
