//! It changes nothing on the way, and holds nothing back, also of requests of many megabytes, as multimodal ones are.

use queuescope::request::Endpoint;

use super::http2::header;
use super::*;

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

/// A recording's request, with this id.
fn request(recording: &Recording, id: &str) -> Vec<u8> {
    let lines = format!("x-case: {}\r\nx-request-id: {id}\r\n", recording.case);
    if recording.method == "GET" {
        return format!("GET {} HTTP/1.1\r\nhost: h\r\n{lines}\r\n", recording.path).into_bytes();
    }
    post(&recording.path, &lines, &recording.request_body)
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
fn assert_same(recording: &Recording, status: u16, headers: Vec<(String, String)>, body: &[u8]) {
    let case = &recording.case;
    assert_eq!(status, recording.status, "{case}");
    assert!(body == recording.body(), "{case}: the body differs");
    let expected = end_to_end(recording.headers.clone());
    assert_eq!(end_to_end(headers), expected, "{case}");
}

fn assert_passed(recording: &Recording, response: &Response) {
    let headers = headers(&response.head);
    assert_same(recording, response.status(), headers, &response.body);
}

fn assert_passed_http2(recording: &Recording, answer: &Answer) {
    let text = |value: &HeaderValue| String::from_utf8(value.as_bytes().to_vec()).unwrap();
    let headers = answer.headers.iter();
    let headers = headers.map(|(name, value)| (name.to_string(), text(value)));
    // HTTP/2 has a framing of its own.
    let framing = recording.header("transfer-encoding");
    let framing = framing.map(|value| ("transfer-encoding".into(), value.into()));
    let headers = headers.chain(framing).collect();
    assert_same(recording, answer.status, headers, &answer.body);
}

/// Over HTTP/1.1 and 2, and to a client that takes a little at a time, with pauses in which more comes than is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recording_passes_unchanged_and_is_the_same_row_to_any_client() {
    let upstream = replay().await;
    let front = Front::start(upstream.addr).await;
    let mut http2 = Http2::connect(front.addr()).await;
    let all = recordings::all();
    let slow = async |recording: &Recording| {
        let mut client = Client::with_small_buffer(front.addr()).await;
        let id = format!("slow {}", recording.case);
        client.send(request(recording, &id)).await;
        let mut read = 0;
        let response = client.read_slowly(997, |bytes| {
            read += bytes;
            read.is_multiple_of(3)
        });
        assert_passed(recording, &response.await);
    };
    futures_util::future::join_all(all.iter().map(slow)).await;
    for recording in &all {
        let case = &recording.case;
        let asks = request(recording, &format!("old {case}"));
        assert_passed(recording, &front.sent(asks).await.response().await);
        if recording.method == "POST" {
            let mut lines = header("x-case", case);
            lines.extend(header("x-request-id", &format!("new {case}")));
            let call = http2.begin(&recording.path, lines, &recording.request_body, false);
            assert_passed_http2(recording, &call.await.answer().await);
        }
    }
    let is_generation =
        |one: &&Recording| one.method == "POST" && Endpoint::from_path(&one.path).is_some();
    let seen = upstream.seen();
    for seen in &seen {
        let case = seen.header("x-case").unwrap();
        let recording = all.iter().find(|one| one.case == case).unwrap();
        assert!(seen.body == recording.request_body, "{case}");
        assert!(seen.header("x-request-id").unwrap().ends_with(&case));
        let is_traced = seen.header("traceparent").is_some();
        assert_eq!(is_traced, is_generation(&recording), "{case}");
    }
    let generations = all.iter().filter(is_generation).count();
    assert!(generations > 70);
    let passed = front.counter("queuescope_passed_through_total");
    assert_eq!(passed as usize, seen.len() - 3 * generations);
    let rows = front.rows().await;
    let of_client = |client: &str| {
        let told = "req_id outcome error input_length actual_output_tokens token_chunks engine_id";
        let cells = |row: &Row| Some(told.split(' ').map(|name| row[name].clone()).collect());
        let theirs = rows.iter().filter(|row| row["req_id"].starts_with(client));
        let mut cells: Vec<Vec<String>> = theirs.filter_map(cells).collect();
        cells
            .iter_mut()
            .for_each(|row| drop(row[0].drain(..client.len())));
        cells.sort();
        cells
    };
    let [slow, old, new] = ["slow ", "old ", "new "].map(of_client);
    assert_eq!((&slow, &new), (&old, &old));
    // A sequence of several has a row of its own.
    let mut ids: Vec<_> = old.iter().map(|row| row[0].split('#').next()).collect();
    ids.dedup();
    assert_eq!(ids.len(), generations);
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
