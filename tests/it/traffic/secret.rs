//! Keys, headers' values and what stands in URLs are never shown.

use super::*;
use crate::support::{files, table};

const KEY: &str = "sk-0a1b2c3d";
const TOKEN: &str = "tok-4e5f6071";

/// All that a command said, and all that it wrote into `dir`.
async fn all_of(line: &[&str], dir: &Path) -> String {
    let mut command = queuescope(line);
    command.env("OPENAI_API_KEY", KEY);
    let done = run_aside(command).await;
    let written = if dir.exists() { files(dir) } else { Vec::new() };
    let written = written
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap());
    [done.out, done.err].into_iter().chain(written).collect()
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
    let line = format!(
        "--num-prompts 3 --header x-token:{TOKEN} --output-dir {}",
        dir.display()
    );
    let line = format!("traffic --base-url {url} {line}");
    let (traffic, probe) = (flags(&line), ["probe", &url]);
    for line in [&traffic[..], &probe] {
        let all = all_of(line, &dir).await;
        assert!(all.contains("not taken: ***"), "{all}");
        assert!(!all.contains(KEY) && !all.contains(TOKEN), "{all}");
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    let sent = |name: &str, value: &str| {
        let values = seen.iter().filter_map(|seen| seen.header(name));
        values.filter(|sent| sent == value).count()
    };
    assert_eq!(sent("authorization", &format!("Bearer {KEY}")), 4);
    assert_eq!(sent("x-token", TOKEN), 3);
}

/// Lines in which KEY stands for it (and NL for a line's end), and what is said of them.
const REFUSED: &str = "\
traffic --base-url http://me:KEY@a:1 | --base-url: must be like
traffic --base-url http://a:1/?key=KEY | --base-url: must be like
traffic --header Authorization_Bearer_KEY | --header ***: must be NAME:VALUE
traffic --header traceparent:KEY | --header traceparent:***: traceparent is set
traffic --api-key KEY\u{e4} | must be printable ASCII
probe http://me:KEY@a:1 | URL: must be like
probe http://a:1 --api-key KEYNL | must be printable ASCII
proxy --upstream http://me:KEY@a:1 | must be HOST:PORT
check --upstream http://me:KEY@a:1 | must be HOST:PORT
check --upstream a:1 --worker w=127.0.0.1:0=http://me:KEY@a:1 | must be HOST:PORT
traffic --help | OPENAI_API_KEY
probe --help | --api-key";

#[tokio::test]
async fn a_line_that_is_refused_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    for [line, said] in table(REFUSED) {
        let word = |word: &str| {
            word.replace("KEY", KEY)
                .replace("NL", "\n")
                .replace('_', " ")
        };
        let line: Vec<String> = line.split(' ').map(word).collect();
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let all = all_of(&line, &folder.path().join("none")).await;
        assert!(all.contains(said), "{line:?}: {all}");
        assert!(!all.contains(KEY), "{line:?}: {all}");
    }
}
