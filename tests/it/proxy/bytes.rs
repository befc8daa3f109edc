//! It changes nothing on the way, and holds nothing back.

use queuescope::request::endpoint::Endpoint;

use crate::support::assert_says;
use crate::support::proxy::{Front, answering, assert_cells, assert_outcome, playing};
use crate::support::recordings::{self, Recording};
use crate::support::upstream::{Gate, Step, Upstream};
use crate::support::wire::{Client, Response, chunk, headers, json_response, post, stream_head};

/// A server that replays each recording to the request that names it, read by read.
async fn replay() -> Upstream {
    Upstream::start(|_, request| {
        let case = request.header("x-case").unwrap();
        let recording = recordings::named(&case);
        // What the recorder cut off has no end, and a connection that it closed is no use again.
        let sends = recording.raw.into_iter().map(Step::Send);
        sends.chain([Step::Close]).collect()
    })
    .await
}

fn request(recording: &Recording) -> Vec<u8> {
    let case = format!("x-case: {}\r\n", recording.case);
    if recording.method == "GET" {
        return format!("GET {} HTTP/1.1\r\nhost: h\r\n{case}\r\n", recording.path).into_bytes();
    }
    post(&recording.path, &case, &recording.request_body)
}

/// The headers that must pass: not those of the connection, nor Pingora's own date.
fn end_to_end(all: Vec<(String, String)>) -> Vec<(String, String)> {
    let ours = ["connection", "keep-alive", "date"];
    let mut kept: Vec<_> = all
        .into_iter()
        .filter(|(name, _)| !ours.contains(&name.as_str()))
        .collect();
    kept.sort();
    kept
}

fn assert_same(recording: &Recording, response: &Response) {
    let case = &recording.case;
    assert_eq!(response.status(), recording.status, "{case}");
    assert!(
        response.body == recording.body(),
        "{case}: the body differs"
    );
    let mut got = end_to_end(headers(&response.head));
    if recording.header("x-request-id").is_none() {
        // Ours: the request had none.
        got.retain(|(name, _)| name != "x-request-id");
    }
    assert_eq!(got, end_to_end(recording.headers.clone()), "{case}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recording_passes_unchanged() {
    let upstream = replay().await;
    let front = Front::start(upstream.addr).await;
    let all = recordings::all();
    let mut generations = 0;
    for recording in &all {
        let mut client = front.sent(request(recording)).await;
        assert_same(recording, &client.response().await);
        let is_generation = Endpoint::from_path(&recording.path).is_some();
        generations += usize::from(recording.method == "POST" && is_generation);
    }
    for (seen, recording) in upstream.seen().iter().zip(&all) {
        assert!(seen.body == recording.request_body, "{}", recording.case);
    }
    assert!(generations > 70);
    let passed = front.counter("queuescope_passed_through_total");
    assert_eq!(passed as usize, all.len() - generations);
    let mut ids: Vec<String> = front
        .rows()
        .await
        .iter()
        .map(|row| row["req_id"].clone())
        .collect();
    for id in &mut ids {
        id.truncate(id.find('#').unwrap_or(id.len()));
    }
    ids.dedup();
    assert_eq!(ids.len(), generations);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_get_the_same_bytes() {
    let upstream = replay().await;
    let front = Front::start(upstream.addr).await;
    let mut readers = tokio::task::JoinSet::new();
    for recording in recordings::all() {
        let addr = front.addr();
        readers.spawn(async move {
            let mut client = Client::with_small_buffer(addr).await;
            client.send(request(&recording)).await;
            let mut read = 0;
            // A little at a time, with pauses in which more comes than is taken.
            let response = client.read_slowly(997, |bytes| {
                read += bytes;
                read.is_multiple_of(3)
            });
            assert_same(&recording, &response.await);
        });
    }
    while let Some(done) = readers.join_next().await {
        done.unwrap();
    }
}

/// Bodies as real encoders write them; nothing here can read them, and nothing must.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encoded_answers_pass_byte_for_byte_and_are_counted() {
    let plain = recordings::named("generate_stream").body();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &plain).unwrap();
    let gzip = gzip.finish().unwrap();
    // A frame with a raw block: its magic number, and what is no encoding at all.
    let zstd = [b"\x28\xb5\x2f\xfd\x00\x58".as_slice(), b"\x19\x00\x00{}\n"].concat();
    let identity = b"\x1f\x8b\x08\x00".to_vec();
    for (coding, body) in [("gzip", gzip), ("zstd", zstd), ("identity", identity)] {
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: {coding}\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let upstream = Upstream::always([head.as_bytes(), &body].concat()).await;
        let front = Front::start(upstream.addr).await;
        let mut client = front.client().await;
        let asked = format!("accept-encoding: {coding}\r\n");
        let answer = client
            .ask("/v1/messages", &asked, b"{\"stream\":true}")
            .await;
        assert_eq!(answer.header("content-encoding").as_deref(), Some(coding));
        assert!(answer.body == body, "{coding}");
        assert_eq!(
            upstream.seen()[0].header("accept-encoding").as_deref(),
            Some(coding)
        );
        let is_read = coding == "identity";
        let unread = r#"queuescope_responses_unread_total{reason="encoded"}"#;
        front.counts(unread, u64::from(!is_read)).await;
        if is_read {
            let row = front.only_row().await;
            assert_outcome(&row, "upstream_died", "without a single event");
            continue;
        }
        let row = front.only_row().await;
        assert_cells(&row, [("outcome", "ok"), ("unread", "encoded")]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_generation_passes_and_is_counted_by_its_path() {
    let answer = br#"{"data":[{"embedding":[0.1,0.2]}],"text":"a","usage":{"prompt_tokens":3}}"#;
    let (upstream, front) = playing(
        vec![Step::Send(json_response(
            std::str::from_utf8(answer).unwrap(),
        ))],
        "",
    )
    .await;
    let paths = [
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/classify",
        "/v1/audio/transcriptions",
        "/tokenize",
    ];
    let body = br#"{"model":"m","input":["a b c"],"stream":false}"#;
    let mut client = front.client().await;
    for path in paths {
        let got = client.ask(path, "", body).await;
        assert!(got.body == answer, "{path}");
    }
    for n in 0..50 {
        client.ask(&format!("/v1/anything/{n}"), "", body).await;
    }
    assert!(upstream.seen().iter().all(|seen| seen.body == body));
    let name = "queuescope_passed_through_total";
    for path in paths {
        assert_eq!(front.counter(&format!("{name}{{endpoint=\"{path}\"}}")), 1);
    }
    assert_eq!(front.counter(&format!("{name}{{endpoint=\"other\"}}")), 50);
    assert_eq!(front.rows().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_is_written_at_once() {
    let (after_head, after_first) = (Gate::new(), Gate::new());
    let gates = (after_head.clone(), after_first.clone());
    let upstream = Upstream::start(move |_, _| {
        vec![
            Step::Send(stream_head()),
            Step::Gate(gates.0.clone()),
            Step::Send(chunk("data: 1\n\n")),
            Step::Gate(gates.1.clone()),
            Step::Send(chunk("data: [DONE]\n\n")),
            Step::Send(chunk("")),
        ]
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.asked("/generate", "", br#"{"stream":true}"#).await;
    // Each part must reach the client before the server makes the next.
    let head = client.read_until(|reader| reader.head.is_some()).await;
    assert_eq!(head.status(), 200);
    assert!(head.body.is_empty());
    after_head.open();
    let mut first = vec![0; chunk("data: 1\n\n").len()];
    tokio::io::AsyncReadExt::read_exact(&mut client.stream, &mut first)
        .await
        .unwrap();
    assert_eq!(first.to_ascii_lowercase(), chunk("data: 1\n\n"));
    after_first.open();
    let row = front.only_row().await;
    assert_eq!(row["endpoint"], "/generate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_pass_as_they_are_written() {
    let upstream = Upstream::always(
        "HTTP/1.1 200 OK\r\nServer: uvicorn\r\nset-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    let front = Front::start(upstream.addr).await;
    let line = "GET /a%20b?q=%C3%A9&x=1 HTTP/1.1\r\n";
    let fields = "Host: example.org:1\r\nX-Odd_Name: a, b\r\nx-two: 1\r\nx-two: 2\r\n";
    let mut client = front.sent(format!("{line}{fields}\r\n")).await;
    let response = client.response().await;
    assert_says(&response.head, "\r\nServer: uvicorn\r\n");
    assert_eq!(response.head.matches("set-cookie: ").count(), 2);
    let head = &upstream.seen()[0].head;
    assert!(head.starts_with(line), "{head}");
    for field in fields.lines() {
        assert!(head.lines().any(|line| line == field), "{field} in {head}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_waits_for_100_continue_gets_it_and_keeps_its_connection() {
    let (_upstream, front) = answering("").await;
    let mut client = front.client().await;
    for _ in 0..2 {
        let body = b"{\"text\":\"a\"}";
        let all = post("/generate", "expect: 100-continue\r\n", body);
        let (head, body) = all.split_at(all.len() - body.len());
        client.send(head).await;
        let interim = client.read_until(|reader| reader.head.is_some()).await;
        assert_eq!(interim.status(), 100);
        client.send(body).await;
        let response = client.response().await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.header("connection").unwrap(), "keep-alive");
    }
    let rows = front.rows().await;
    assert_eq!(rows.len(), 2);
    assert!(
        rows.iter()
            .all(|row| row["outcome"] == "ok" && row["input_length"] == "1")
    );
}
