//! Rows of streamed chat get the engine's moments from the request log of a server on the same disk.

use std::io::Write;

use super::join::Chat;
use crate::support::proxy::assert_cells;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_stream_shows_its_queue_by_the_servers_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let chat = Chat::with(|config| {
        config.engine.traces.listen = None;
        config.engine.logs.path = Some(path.clone());
    })
    .await;
    chat.ask().await;
    let line = format!(
        "{{\"request_parameters\": \"{{\\\"text\\\": \\\"a secret\\\"}}\", \"id\": \"{}\", \"prompt_tokens\": 25, \
         \"num_retractions\": 0, \"forward_entry_time\": 1795170105.125, \"prefill_finished_time\": 1795170105.5, \
         \"queue_time\": 0.0625, \"completion_tokens\": 8, \"cached_tokens\": 24, \"dp_rank\": 1, \
         \"request_received_ts\": 1795170105.0, \"first_token_latency\": 0.5625, \"request_finished_ts\": 1795170106.0}}\n",
        chat.rid
    );
    let (half, rest) = line.split_at(100);
    let log = path.join("sglang-request-metrics-20261122_07.log");
    let mut log = std::fs::File::create(log).unwrap();
    log.write_all(half.as_bytes()).unwrap();
    log.write_all(rest.as_bytes()).unwrap();
    let path = chat.front.records();
    let row = &chat.front.first_row().await;
    assert_eq!(row["timing_source"], "log", "{row:?}");
    let queue: f64 = row["pure_queue_time"].parse().unwrap();
    assert!((queue - 0.0625).abs() < 1e-6);
    assert_cells(row, [("token_count_source", "log"), ("dp_rank", "1")]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("secret"));
}
