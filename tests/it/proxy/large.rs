//! Requests of many megabytes, as multimodal ones are.

use super::*;

/// The parts of a chat's body before and after its image.
const BEFORE: &str = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"what is this"},
    {"type":"image_url","image_url":{"url":"data:image/png;base64,"#;
const AFTER: &str = r#""}}]}],"model":"seer","stream":false,"max_tokens":7}"#;

/// Bytes of base64, none like those a MiB before.
fn piece(index: usize) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |at: usize| alphabet[(at * 31 + index * 17 + at / 64) % 64];
    (0..1 << 20).map(letter).collect()
}

/// That it passes as it comes, and none of it is held, `leaving` shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_of_64_mib_passes_and_what_surrounds_it_is_read() {
    let answer = r#"{"id":"i","choices":[{"index":0,"message":{"content":"a cat"}}]}"#;
    let upstream = Upstream::always(json_response(answer)).await;
    let front = Front::start(upstream.addr).await;
    let image = (0..64).map(piece).collect::<Vec<_>>().concat();
    let body = [BEFORE.as_bytes(), &image, AFTER.as_bytes()].concat();
    let mut client = front.client().await;
    client.send(post("/v1/chat/completions", "", &body)).await;
    assert_eq!(client.response().await.status(), 200);
    assert!(upstream.seen()[0].body == body);
    let cells = "outcome=ok, model=seer, stream=False, input_length=3, \
                 expected_output_length=7, has_generated_text=True";
    assert_row(&front.only_row().await, cells);
}
