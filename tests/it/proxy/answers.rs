//! Every answer of the admin listener, word for word. `UPDATE_GOLDEN=1` writes the file anew.

use crate::golden::assert_golden;

use super::*;

/// An answer without what differs from process to process (names of clocks, versions, ports).
fn lasting(value: &mut Value) {
    match value {
        Value::Array(all) => {
            // Nearly every connection is used again: Pingora's pool drops one now and then.
            all.retain(|one| one["name"] != "upstream_reused");
            all.iter_mut().for_each(lasting);
        }
        Value::Object(members) => {
            for (key, value) in members {
                match key.as_str() {
                    "process" | "version" | "help" => *value = "*".into(),
                    _ => lasting(value),
                }
            }
        }
        // A clock, and a span.
        Value::String(text) if text.starts_with("manual-") => *text = "*".into(),
        Value::String(text) if text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit()) => {
            *text = "*".into();
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_as_ever() {
    let start = Stamp::from_nanos(1_795_168_000_000_000_000);
    let (clock, manual) = Clock::manual(start);
    let server = Upstream::start(move |n, _| {
        manual.advance(Duration::from_millis(40));
        let status = ["200 OK", "500 Internal Server Error"][n];
        let answer = String::from_utf8(json_response("{\"text\":\"a\"}")).unwrap();
        vec![Step::Send(answer.replace("200 OK", status).into_bytes())]
    })
    .await;
    let config = Config {
        fault_injection: true,
        workers: workers(&[server.addr]),
        ..config(&[server.addr])
    };
    let proxy = started(config, clock).await;
    let addr = |of| proxy.address(of).unwrap();
    let [front, admin, hop] = ["listen", "admin", "worker"].map(addr);
    let get = async |path: &str| ask(admin, "GET", path, "", "").await;
    for (id, number) in [("one", 1), ("two", 2)] {
        let mut client = Client::connect(front).await;
        let trace = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let head = format!("x-request-id: {id}\r\n{trace}\r\n");
        client.ask("/generate", &head, b"{\"text\":\"x\"}").await;
        let has_ended = async || get("/live.json").await.json()["last"] == number;
        until_async("its end", has_ended).await;
    }
    let stall = r#"{"kind":"stall"}"#;
    let mut text = String::new();
    for (method, path, body) in [
        ("GET", "/live.json", ""),
        ("GET", "/live.json?after=1", ""),
        ("GET", "/requests/1.json", ""),
        ("GET", "/requests/2.json", ""),
        ("GET", "/requests/3.json", ""),
        ("GET", "/healthz", ""),
        ("GET", "/readyz", ""),
        ("GET", "/faults", ""),
        ("PUT", "/faults/w0", stall),
        ("PUT", "/faults/w0", "{}"),
        ("PUT", "/faults/w1", stall),
        ("DELETE", "/faults/w0", ""),
        ("POST", "/faults/w0", ""),
        ("POST", "/live.json", ""),
        ("GET", "/nothing", ""),
    ] {
        let answer = ask(admin, method, path, "", body).await;
        let said = match serde_json::from_str(&answer.text()) {
            Ok(mut json) => {
                lasting(&mut json);
                format!("{json:#}\n")
            }
            Err(_) => answer.text(),
        };
        let kind = answer.header("content-type").unwrap();
        let allow = answer.header("allow").unwrap_or_default();
        let status = answer.status();
        text += &format!("{method} {path} {body}\n{status} {kind} {allow}\n{said}\n");
    }
    for addr in [front, admin, hop, server.addr] {
        text = text.replace(&addr.to_string(), "127.0.0.1:*");
    }
    assert_golden("admin.txt", &text);
}
