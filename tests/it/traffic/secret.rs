//! Keys, headers' values and what stands in URLs are never shown.

use super::*;

const KEY: &str = "sk-0a1b2c3d";
const TOKEN: &str = "tok-4e5f6071";

/// All that a command said, and all that it wrote into `dir`.
async fn all_of(line: &[&str], dir: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queuescope"));
    command.args(line).env("OPENAI_API_KEY", KEY);
    let done = tokio::task::spawn_blocking(move || command.output().unwrap());
    let done = done.await.unwrap();
    let mut all = [done.stdout, done.stderr].concat();
    if dir.exists() {
        for file in std::fs::read_dir(dir).unwrap() {
            all.extend(std::fs::read(file.unwrap().path()).unwrap());
        }
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_says_them_back_is_not_repeated() {
    let server = Upstream::start(|_, seen| {
        let key = seen.header("authorization").unwrap();
        let token = seen.header("x-token").unwrap_or_default();
        let body = format!("{{\"error\":{{\"message\":\"not taken: {key} {token}\"}}}}");
        let head = "HTTP/1.1 401 X\r\ncontent-type: application/json\r\ncontent-length: ";
        let answer = format!("{head}{}\r\n\r\n{body}", body.len());
        vec![Step::Send(answer.into_bytes())]
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let url = format!("http://{}", server.addr);
    let token = format!("x-token: {TOKEN}");
    let traffic = [
        "traffic",
        "--base-url",
        &url,
        "--num-prompts",
        "3",
        "--header",
        &token,
        "--output-dir",
        dir.to_str().unwrap(),
    ];
    let probe = ["probe", &url];
    for line in [&traffic[..], &probe] {
        let all = all_of(line, &dir).await;
        assert!(all.contains("not taken: ***"), "{all}");
        assert!(!all.contains(KEY) && !all.contains(TOKEN), "{all}");
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    let sent = |name: &str, value: &str| {
        seen.iter()
            .filter(|s| s.header(name).as_deref() == Some(value))
            .count()
    };
    assert_eq!(
        (
            sent("authorization", &format!("Bearer {KEY}")),
            sent("x-token", TOKEN)
        ),
        (4, 3)
    );
}

#[tokio::test]
async fn a_line_that_is_refused_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let with = |before: &str, after: &str| format!("{before}{KEY}{after}");
    for (line, said) in [
        (
            vec![
                "traffic".into(),
                "--base-url".into(),
                with("http://me:", "@a:1"),
            ],
            "--base-url: needs a host and no user",
        ),
        (
            vec![
                "traffic".into(),
                "--base-url".into(),
                with("http://a:1/?key=", ""),
            ],
            "--base-url: has a query",
        ),
        (
            vec![
                "traffic".into(),
                "--header".into(),
                with("Authorization Bearer ", ""),
            ],
            "--header: must be NAME:VALUE",
        ),
        (
            vec![
                "traffic".into(),
                "--header".into(),
                with("traceparent:", ""),
            ],
            "--header traceparent:***: traceparent is set",
        ),
        (
            vec!["traffic".into(), "--api-key".into(), with("", "\u{e4}")],
            "must be printable ASCII",
        ),
        (
            vec!["probe".into(), with("http://me:", "@a:1")],
            "URL: needs a host and no user",
        ),
        (
            vec![
                "probe".into(),
                "http://a:1".into(),
                "--api-key".into(),
                with("", "\n"),
            ],
            "must be printable ASCII",
        ),
        (
            vec![
                "proxy".into(),
                "--upstream".into(),
                with("http://me:", "@a:1"),
            ],
            "only a host and a port",
        ),
        (
            vec![
                "check".into(),
                "--upstream".into(),
                with("http://me:", "@a:1"),
            ],
            "only a host and a port",
        ),
        (
            vec![
                "check".into(),
                "--upstream".into(),
                "a:1".into(),
                "--worker".into(),
                with("w=127.0.0.1:0=http://me:", "@a:1"),
            ],
            "only a host and a port",
        ),
        (vec!["traffic".into(), "--help".into()], "OPENAI_API_KEY"),
        (vec!["probe".into(), "--help".into()], "--api-key"),
    ] {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let all = all_of(&line, &folder.path().join("none")).await;
        assert!(all.contains(said), "{line:?}: {all}");
        assert!(!all.contains(KEY), "{line:?}: {all}");
    }
}
