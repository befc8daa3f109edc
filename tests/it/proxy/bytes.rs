//! It changes nothing on the way, and holds nothing back, also of requests of many megabytes, as multimodal ones are.

use queuescope::request::Endpoint;

use super::*;

/// A server that replays each recording to the request that names it, read by read.
pub async fn replay() -> Upstream {
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
    let kept = all
        .into_iter()
        .filter(|(name, _)| !ours.contains(&name.as_str()));
    let mut kept: Vec<_> = kept.collect();
    kept.sort();
    kept
}

/// Fails unless these are the status, headers and body of a recording.
pub fn assert_same(
    recording: &Recording,
    status: u16,
    headers: Vec<(String, String)>,
    body: &[u8],
) {
    let case = &recording.case;
    assert_eq!(status, recording.status, "{case}");
    assert!(body == recording.body(), "{case}: the body differs");
    let mut got = end_to_end(headers);
    if recording.header("x-request-id").is_none() {
        // Ours: the request had none.
        got.retain(|(name, _)| name != "x-request-id");
    }
    assert_eq!(got, end_to_end(recording.headers.clone()), "{case}");
}

fn assert_passed(recording: &Recording, response: &Response) {
    let headers = headers(&response.head);
    assert_same(recording, response.status(), headers, &response.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recording_passes_unchanged() {
    let upstream = replay().await;
    let front = Front::start(upstream.addr).await;
    let all = recordings::all();
    for recording in &all {
        let mut client = front.sent(request(recording)).await;
        assert_passed(recording, &client.response().await);
    }
    for (seen, recording) in upstream.seen().iter().zip(&all) {
        assert!(seen.body == recording.request_body, "{}", recording.case);
    }
    let is_generation =
        |one: &&Recording| one.method == "POST" && Endpoint::from_path(&one.path).is_some();
    let generations = all.iter().filter(is_generation).count();
    assert!(generations > 70);
    let passed = front.counter("queuescope_passed_through_total");
    assert_eq!(passed as usize, all.len() - generations);
    // A sequence of several has a row of its own.
    let rows = front.rows().await;
    let mut ids: Vec<_> = rows
        .iter()
        .map(|row| row["req_id"].split('#').next())
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), generations);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_get_the_same_bytes() {
    let upstream = replay().await;
    let front = Front::start(upstream.addr).await;
    let addr = front.addr();
    let reads = |recording: Recording| async move {
        let mut client = Client::with_small_buffer(addr).await;
        client.send(request(&recording)).await;
        let mut read = 0;
        // A little at a time, with pauses in which more comes than is taken.
        let response = client.read_slowly(997, |bytes| {
            read += bytes;
            read.is_multiple_of(3)
        });
        assert_passed(&recording, &response.await);
    };
    let readers: JoinSet<()> = recordings::all().into_iter().map(reads).collect();
    readers.join_all().await;
}

/// A body as a real encoder writes it; nothing here can read it, and nothing must.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encoded_answer_passes_byte_for_byte_and_is_counted() {
    let plain = recordings::named("generate_stream").body();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &plain).unwrap();
    let body = gzip.finish().unwrap();
    let coding = "content-encoding: gzip\r\n";
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let head = format!("{head}{coding}content-length: {}\r\n\r\n", body.len());
    let answer = [head.as_bytes(), &body].concat();
    let (upstream, front) = playing(vec![Step::Send(answer)], "").await;
    let accepts = "accept-encoding: gzip\r\n";
    let asks = b"{\"stream\":true}";
    let answer = front.ask("/v1/messages", accepts, asks).await;
    assert_says(&answer.head, coding);
    assert!(answer.body == body);
    assert_says(&upstream.seen()[0].head, accepts);
    let unread = r#"queuescope_responses_unread_total{reason="encoded"}"#;
    front.counts(unread, 1).await;
    let row = front.only_row().await;
    assert_cells(&row, [("outcome", "ok"), ("unread", "encoded")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_generation_passes_and_is_counted() {
    let answer = r#"{"data":[{"embedding":[0.1,0.2]}],"text":"a","usage":{"prompt_tokens":3}}"#;
    let (upstream, front) = playing(vec![Step::Send(json_response(answer))], "").await;
    let known = "/v1/embeddings /v1/rerank /v1/score /v1/classify /v1/audio/transcriptions /tokenize /v1/anything /generate/";
    let body = br#"{"model":"m","input":["a b c"],"stream":false}"#;
    let mut client = front.client().await;
    for path in known.split(' ') {
        let got = client.ask(path, "", body).await;
        assert!(got.body == answer.as_bytes(), "{path}");
    }
    assert!(upstream.seen().iter().all(|seen| seen.body == body));
    assert_eq!(front.counter("queuescope_passed_through_total "), 8);
    front.counts("queuescope_upstream_in_flight", 0).await;
    assert_eq!(front.rows().await.len(), 0);
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
    for row in front.rows().await {
        assert_row(&row, "outcome=ok, input_length=1");
    }
}

/// The parts of a chat's body before and after its image.
const BEFORE: &str = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"what is this"},
    {"type":"image_url","image_url":{"url":"data:image/png;base64,"#;
const AFTER: &str = r#""}}]}],"model":"seer","stream":false,"max_tokens":7}"#;

/// That it passes as it comes, and none of it is held, `leaving` shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_of_64_mib_passes_and_what_surrounds_it_is_read() {
    let answer = r#"{"id":"i","choices":[{"index":0,"message":{"content":"a cat"}}]}"#;
    let upstream = Upstream::always(json_response(answer)).await;
    let front = Front::start(upstream.addr).await;
    // 37 letters: none is like that a MiB before.
    let image = b"abcdefghijklmnopqrstuvwxyz0123456789+".repeat((64 << 20) / 37);
    let body = [BEFORE.as_bytes(), &image, AFTER.as_bytes()].concat();
    let mut client = front.client().await;
    client.send(post("/v1/chat/completions", "", &body)).await;
    assert_eq!(client.response().await.status(), 200);
    assert!(upstream.seen()[0].body == body);
    let cells = "outcome=ok, model=seer, stream=False, input_length=3, \
                 expected_output_length=7, has_generated_text=True";
    assert_row(&front.only_row().await, cells);
}
