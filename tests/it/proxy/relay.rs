//! What only a loop of our own can get right: errors after a passed `100 Continue`, refusals with our own words, what is
//! read ahead.

use super::*;

const HEAD: &str = "POST /generate HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_after_100_continue_is_still_answered() {
    let [whole, large] = ["{}", "{            }"].map(|body| [chunk(body), chunk("")].concat());
    let broken = [&chunk("abcde")[..], b"zz\r\n"].concat();
    for (then, body, status, outcome) in [
        (Step::Close, whole.clone(), 502, "upstream_died"),
        (Step::Silence, whole, 504, "timeout"),
        (Step::Silence, large, 413, "client_error"),
        (Step::Silence, broken, 400, "client_error"),
    ] {
        let limits = "upstream_read_timeout_s = 0.3\nrequest_body_max_bytes = 10";
        let is_open = matches!(then, Step::Silence);
        let (upstream, front) = playing(vec![then], limits).await;
        let head = format!("{HEAD}transfer-encoding: chunked\r\n\r\n");
        let mut client = front.sent(head).await;
        let head = client.read_until(|reader| reader.head.is_some()).await;
        assert_eq!(head.status(), 100);
        client.send(body).await;
        let response = client.response().await;
        assert_eq!(response.status(), status);
        assert_eq!(response.json()["error"]["code"], status);
        until("the upstream let go", || {
            upstream.gone() == usize::from(is_open)
        })
        .await;
        let row = front.only_row().await;
        assert_row(&row, &format!("status={status}, outcome={outcome}"));
        assert_eq!(response.header("x-request-id"), Some(row["req_id"].clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_were_read_at_once_are_written_at_once_and_before_what_ends_them() {
    let events: Vec<_> = (0..20).map(|at| format!("data: {at}\n\n")).collect();
    let chunks: Vec<u8> = events.iter().flat_map(chunk).collect();
    for (end, is_whole) in [("0\r\n\r\n", true), ("", false), ("nonsense\r\n", false)] {
        let answer = [&stream_head(), &chunks[..], end.as_bytes()].concat();
        let (_upstream, front) = playing(vec![Step::Send(answer), Step::Close], "").await;
        let closes = "connection: close\r\n";
        let mut client = front.asked("/v1/embeddings", closes, b"{}").await;
        let raw = String::from_utf8(client.read_to_close().await).unwrap();
        assert!(raw.contains(&events.concat()), "{raw}");
        assert_eq!(raw.ends_with("\r\n0\r\n\r\n"), is_whole, "{raw}");
    }
}
