use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

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
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1);
    // The server is gone: the file is taken from the cache.
    let again = cached(&cache, &mirror, SUM).await;
    assert_eq!(again.unwrap(), path);
}
