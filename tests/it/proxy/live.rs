//! The live page and what it reads: of a bounded number of requests, and no prompt. That its figures are those of the records, `metrics.rs` shows.

use queuescope::request::ServerRole;

use super::*;

/// What the page gets, once so many requests have ended.
async fn live(front: &Front, requests: u64) -> Value {
    let news = async || front.get("/live.json").await.json();
    let have_ended = async || news().await["last"] == requests;
    until_async("the requests' end", have_ended).await;
    news().await
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Waits until it is told that so many requests are received, wait and stream here, are in the router, and wait and stream at its
/// worker.
async fn present(
    front: &Front,
    here: [u64; 3],
    in_router: Option<u64>,
    worker: &str,
    there: [u64; 2],
) {
    let [receiving, waiting, streaming] = here;
    let phases = json!({"receiving": receiving, "waiting": waiting, "streaming": streaming});
    let worker = json!({"name": worker, "phases": {"waiting": there[0], "streaming": there[1]}});
    let told = json!({"phases": phases, "in_router": in_router, "workers": [worker]});
    let is_so = async || front.get("/live.json").await.json()["present"] == told;
    until_async(&told.to_string(), is_so).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_flight_is_told_by_worker_and_router() {
    let [held, begins, ends] = [(); 3].map(|()| Gate::new());
    let gate = |gate: &Gate| vec![Step::Gate(gate.clone())];
    let server = Upstream::playing([gate(&begins), begun(), gate(&ends), done()].concat()).await;
    let (hops, workers) = known_workers(&[server.addr]);
    let router = Upstream::start({
        let (held, hop) = (held.clone(), hops[0]);
        move |_, request| {
            let there = Step::Relay(vec![hop], request.closing(str::to_owned));
            vec![Step::Gate(held.clone()), there]
        }
    })
    .await;
    let front = Front::with(&[router.addr], |config| config.workers = workers).await;
    let direct = Front::keyed(&[server.addr], "upstream_kind = \"server\"").await;
    let its_server = &*server.addr.to_string();
    present(&front, [0; 3], Some(0), "w0", [0; 2]).await;
    let mut client = front.asked("/generate", "", b"{\"stream\":true}").await;
    let mut straight = direct.asked("/generate", "", b"{\"stream\":true}").await;
    present(&front, [0, 1, 0], Some(1), "w0", [0; 2]).await;
    held.open();
    present(&front, [0, 1, 0], Some(0), "w0", [1, 0]).await;
    present(&direct, [0, 1, 0], None, its_server, [1, 0]).await;
    begins.open();
    present(&front, [0, 0, 1], Some(0), "w0", [0, 1]).await;
    present(&direct, [0, 0, 1], None, its_server, [0, 1]).await;
    ends.open();
    client.response().await;
    straight.response().await;
    present(&front, [0; 3], Some(0), "w0", [0; 2]).await;
    present(&direct, [0; 3], None, its_server, [0; 2]).await;
}

/// What a prefill server has a decode server has too: nothing of that is taken from those in the router.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_at_a_prefill_server_is_no_other_request() {
    let held = Gate::new();
    let stuck = || Upstream::playing(vec![Step::Gate(held.clone())]);
    let (server, router) = (stuck().await, stuck().await);
    let (hops, mut workers) = known_workers(&[server.addr]);
    workers[0].role = Some(ServerRole::Prefill);
    let front = Front::with(&[router.addr], |config| config.workers = workers).await;
    let _in_router = front.asked("/generate", "", b"{}").await;
    let mut leg = Client::connect(hops[0]).await;
    leg.post("/generate", "", b"{}").await;
    let both_wait = async || {
        let present = front.get("/live.json").await.json()["present"].take();
        present["workers"][0]["phases"]["prefilling"] == 1 && present["in_router"] == 1
    };
    until_async("one in the router, one at the server", both_wait).await;
    held.open();
}

/// That requests do not pile up `telemetry::recent` shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_are_strings_and_long_ones_are_cut() {
    let (_server, front) = answering("").await;
    let model = r#"</script><img src=x onerror="alert('1')">"#;
    let id = format!("\"</td>{}", "x".repeat(5000));
    let head = format!("x-request-id: {id}\r\n");
    let mut client = front.client().await;
    for model in [model.to_owned(), model.repeat(100)] {
        let body = json!({"model": model, "text": "t"}).to_string();
        client.ask("/v1/completions", &head, body.as_bytes()).await;
    }
    let news = live(&front, 2).await;
    let [short, long] = [0, 1].map(|at| &news["requests"][at]);
    assert_eq!(short["model"], model);
    assert_eq!(short["req_id"], id[..256]);
    assert!(long.to_string().len() < 4_000, "{long}");
    let answer = front.get("/requests/1.json").await;
    assert_eq!(answer.header("content-type").unwrap(), "application/json");
    assert_eq!(answer.header("x-content-type-options").unwrap(), "nosniff");
    assert_eq!(answer.json()["bar"]["model"], model);
    let ahead = front.get("/live.json?after=18446744073709551615").await;
    assert_eq!(ahead.json()["requests"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_prompt_and_no_answer_is_shown() {
    let refusal = r#"{"error":{"message":"cannot read ['my-MARKER-prompt']","code":400}}"#;
    let refused = wire::answer("400 Bad Request", refusal);
    let error = chunk(format!("data: {refusal}\n\n"));
    let told = json_response(r#"{"text":"MARKER","meta_info":{"id":"e"}}"#);
    let streamed = [stream_head(), error, chunk("")].concat();
    let answers = [refused, streamed, told].map(|answer| vec![Step::Send(answer)]);
    let server = Upstream::start(move |n, _| answers[n].clone()).await;
    let front = Front::start(server.addr).await;
    let mut client = front.client().await;
    for _ in 0..3 {
        let body = br#"{"text":"my-MARKER-prompt","stream":true}"#;
        client.ask("/generate", "", body).await;
    }
    let news = live(&front, 3).await;
    assert_eq!(news["requests"][0]["outcome"], "client_error");
    assert!(text(&news["requests"][0]["error"]).starts_with("400; the server's message"));
    let paths = "/ /live.json /metrics /requests/1.json /requests/2.json /requests/3.json";
    for path in paths.split(' ') {
        let answer = front.get(path).await;
        assert_eq!(answer.status(), 200, "{path}");
        let shown = answer.text();
        assert!(!shown.contains("MARKER"), "{path}: {shown}");
    }
    // The marker did pass: the records quote the server.
    let rows = front.rows().await;
    assert_eq!(rows[0]["error"], "400 cannot read ['my-MARKER-prompt']");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_hops_without_a_records_file_shows_its_requests() {
    let server = Upstream::playing([begun(), done()].concat()).await;
    let hop = Front::with(&[], |config| {
        config.workers = workers(&[server.addr]);
        config.records = None;
    })
    .await;
    let mut client = Client::connect(hop.hop_addr()).await;
    client.ask("/generate", "", b"{\"stream\":true}").await;
    let news = live(&hop, 1).await;
    let one = &news["requests"][0];
    assert_eq!([&one["worker"], &one["outcome"]], ["w0", "ok"]);
    let sentence = text(&news["window"]["spent"]["all"]["sentence"]);
    assert!(!sentence.contains("no router"), "{sentence}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_needs_nothing_else_and_runs_its_own_script_only() {
    let (_server, front) = answering("").await;
    let (page, again) = (front.get("/").await, front.get("/").await);
    let kind = page.header("content-type").unwrap();
    assert_eq!(kind, "text/html; charset=utf-8");
    let policy = page.header("content-security-policy").unwrap();
    let (_, nonce) = policy.split_once("script-src 'nonce-").unwrap();
    let (nonce, _) = nonce.split_once('\'').unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
    assert!(!again.text().contains(nonce), "a new word each time");
    let text = page.text();
    assert_eq!(text.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert_eq!(text.matches("<script").count(), 1);
    assert_eq!(text.matches("<style").count(), 1);
    for other in "{{| src=| style=| onclick=|innerHTML|@import|url(".split('|') {
        assert!(!text.contains(other), "{other}");
    }
}
