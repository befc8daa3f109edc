//! One word for each stage in all that users read: the two queues have no other name than those in `docs/METRICS.md`.

/// What the two queues, and the remainder that nobody saw in a server, are not called.
const OTHERS: [&str; 13] = [
    "server's queue",
    "server's own queue",
    "server's waiting queue",
    "servers' queue",
    "servers' waiting queue",
    "scheduler's queue",
    "scheduler's waiting queue",
    "engine's queue",
    "engine's waiting queue",
    "router's queue",
    "router's own queue",
    "queue in the router",
    "somewhere between router send",
];

/// Where users read, and how such a file's name ends. The glossary says what others call the two.
const READ: [(&str, &[&str]); 12] = [
    (".", &["README.md", "config.toml"]),
    ("docs", &[".md"]),
    ("grafana/panels", &[".py"]),
    ("deploy/prometheus", &[".yml"]),
    ("src/report/page", &[".js", ".html"]),
    ("src/serve/live", &[".html"]),
    ("tests/data/golden/report", &[".txt", ".md"]),
    ("tests/data/golden", &[".txt"]),
    ("tests/data/config", &["help.txt"]),
    ("tests/data/experiment", &[".help.txt"]),
    ("tests/data/traffic", &["help.txt"]),
    ("tests/data/sim", &["help.txt"]),
];

/// A text in one line, as it is read: without breaks, nor between the pieces of a literal.
fn read(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace("\" \"", "").to_lowercase()
}

#[test]
fn a_stage_has_one_name_in_what_users_read() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (folder, ends) in READ {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path().display().to_string();
            let is_read = ends.iter().any(|end| path.ends_with(end));
            if is_read && !path.ends_with("GLOSSARY.md") {
                count += 1;
                let text = read(&std::fs::read_to_string(&path).unwrap());
                let found = OTHERS.iter().filter(|name| text.contains(**name));
                wrong.extend(found.map(|name| format!("{path}: {name:?}")));
            }
        }
    }
    assert!(count > 40, "{count} files were read");
    assert!(
        wrong.is_empty(),
        "the words are \"server queue\", \"router queue\" and \"unseen in the server\" (docs/GLOSSARY.md):\n{}",
        wrong.join("\n")
    );
}
