use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const CONTENT: &str = "[]\n";
/// Of [`CONTENT`], by `sha256sum`.
const SUM: &str = "37517e5f3dc66819f61f5a7bb8ace1921282415f10551d2defa5c3eb0985b570";

/// A server that gives the answers in turn, a connection each; and the paths it was asked for.
async fn server(answers: Vec<String>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = asked.clone();
    tokio::spawn(async move {
        for answer in answers {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            heard.lock().unwrap().push(path);
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (addr, asked)
}

fn answer(status: &str, more: &str, body: &str) -> String {
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
async fn a_file_is_brought_once_over_redirects() {
    let there = answer("200 OK", "", CONTENT);
    let (end, asked_end) = server(vec![there]).await;
    let (addr, asked) = server(vec![
        answer("302 Found", "location: /b?c=d\r\n", "moved"),
        answer("307 T", &format!("location: http://{end}/e\r\n"), ""),
    ])
    .await;
    let root = tempfile::tempdir().unwrap();
    let cache = root.path().join("deep/cache");
    let mirror = format!("http://{addr}/");
    let brought = cached(&cache, &mirror, SUM).await;
    let path = brought.unwrap();
    assert_eq!(path, cache.join(NAME));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), CONTENT);
    let place = format!("{PLACE}/{NAME}");
    assert_eq!(*asked.lock().unwrap(), [&*place, "/b?c=d"]);
    assert_eq!(*asked_end.lock().unwrap(), ["/e"]);
    assert_eq!(files(&cache), [NAME]);
    // Nobody answers any more: it is there.
    let again = cached(&cache, &mirror, SUM).await;
    assert_eq!(again.unwrap(), path);
}

#[tokio::test]
async fn what_is_not_whole_and_right_is_not_kept_and_the_error_helps() {
    let cut = answer("200 OK", "", CONTENT).replace("content-length: 3", "content-length: 9");
    let round = vec![answer("301 M", "location: /a/set.json\r\n", ""); 11];
    let status = |status: &str| vec![answer(status, "", "{}\n")];
    for (answers, part) in [
        (status("200 OK"), "but the published file has 37517e5f"),
        (vec![cut], "curl ended with exit status: 18"),
        (status("404 Not Found"), "curl ended with exit status: 22"),
        (round, "curl ended with exit status: 47"),
    ] {
        let (addr, _) = server(answers).await;
        let root = tempfile::tempdir().unwrap();
        let mirror = format!("http://{addr}");
        let brought = cached(root.path(), &mirror, SUM).await;
        let error = brought.unwrap_err();
        let told = error.to_string();
        let url = format!("cannot download http://{addr}{PLACE}/{NAME}: ");
        let kept = root.path().join(NAME);
        let help = format!(
            "name it with --dataset-path FILE, or put it at {}",
            kept.display()
        );
        let is_whole = told.starts_with(&url) && told.ends_with(&help);
        assert!(is_whole && told.contains(part), "{told}");
        assert!(!error.is_usage());
        assert_eq!(files(root.path()).len(), 0, "{part}");
    }
}
