//! Configs as newcomers write them, and what they are told.

use super::*;
use crate::upstream::Address;

/// Fails unless these are the problems of a config, in this order.
fn assert_problems(text: &str, problems: &[(usize, &str)]) -> Parsed {
    let parsed = Parsed::of(text);
    let found: Vec<(usize, &str)> = parsed
        .of_file
        .iter()
        .map(|(line, wrong)| (*line, wrong.as_str()))
        .collect();
    assert_eq!(found, problems, "{text}");
    for (_, wrong) in found {
        for word in [
            "usize", "u64", "f64", "i128", "expected", "variant", "field", "sequence", "struct",
            "type",
        ] {
            assert!(
                !wrong.contains(word),
                "{word} is no word of a user's: {wrong}"
            );
        }
        assert!(!wrong.contains('\n'), "{wrong}");
    }
    parsed
}

fn names(parsed: &Parsed) -> Vec<String> {
    parsed.config().upstream.iter().map(Address::name).collect()
}

#[test]
fn a_value_of_another_kind() {
    let text = "[proxy]\nthreads = \"2\"\ndrain_timeout_s = \"60s\"\nclient_idle_timeout_s = 1.5\n\
                record_queue = -4\nresend_broken = \"yes\"\nupstream = \"http://a:1\"\nlisten = 8800\n\
                records = true\npolicy = \"least_conn\"\nadmin = 2026-01-01\nrecords_keep = 1e9\nstamps = true\n";
    let parsed = assert_problems(
        text,
        &[
            (
                2,
                "threads = \"2\": must be a whole number, 0 or more, without quotes, as in threads = 2",
            ),
            (
                3,
                "drain_timeout_s = \"60s\": must be a number of seconds, without quotes, as in drain_timeout_s = 60.0",
            ),
            (
                4,
                "client_idle_timeout_s = 1.5: must be a whole number, 0 or more, as in client_idle_timeout_s = 75",
            ),
            (
                5,
                "record_queue = -4: must be a whole number, 0 or more, as in record_queue = 65536",
            ),
            (
                6,
                "resend_broken = \"yes\": must be true or false, without quotes, as in resend_broken = false",
            ),
            (
                7,
                "upstream = \"http://a:1\": must be a list in brackets, as in upstream = [\"http://127.0.0.1:30000\"]",
            ),
            (
                8,
                "listen = 8800: must be text in quotes, as in listen = \"127.0.0.1:8800\"",
            ),
            (
                9,
                "records = true: must be text in quotes, as in records = \"records.csv\"",
            ),
            (
                10,
                "policy = \"least_conn\": must be one of \"round_robin\", \"random\", \"shortest_queue\", \"power_of_two\", \"cache_aware\"",
            ),
            (
                11,
                "admin = 2026-01-01: must be text in quotes, as in admin = \"127.0.0.1:8801\"",
            ),
            (
                12,
                "records_keep = 1e9: must be a whole number, 0 or more, as in records_keep = 0",
            ),
            (
                13,
                "stamps = true: must be one of \"loopback\", \"token\", \"never\"",
            ),
        ],
    );
    assert_eq!(parsed.keys.len(), 12, "nothing more is said of them");
}

#[test]
fn a_number_that_no_machine_holds() {
    let wrong =
        "threads = 99999999999999999999999: must be a whole number, 0 or more, as in threads = 2";
    assert_problems(
        "[proxy]\nthreads = 99999999999999999999999\n",
        &[(2, wrong)],
    );
}

#[test]
fn a_secret_is_not_shown() {
    assert_problems(
        "[proxy]\nadmin_token = 12345678\nstamps_token = [\"hush\"]\n",
        &[
            (
                2,
                "admin_token: must be text in quotes, as in admin_token = \"16 characters or more\"",
            ),
            (
                3,
                "stamps_token: must be text in quotes, as in stamps_token = \"16 characters or more\"",
            ),
        ],
    );
}

#[test]
fn a_worker_in_single_brackets_is_read_all_the_same() {
    let worker = "name = \"w\"\nlisten = \"127.0.0.1:9000\"\nupstream = \"a:1\"\n";
    let text = format!("[proxy]\n[worker]\n{worker}");
    let parsed = assert_problems(&text, &[(2, "[worker]: write `[[worker]]`")]);
    assert_eq!(parsed.config().workers[0].upstream.name(), "a:1");
    let text = format!("[[proxy]]\nthreads = 3\n[[workers]]\n{worker}");
    let parsed = assert_problems(
        &text,
        &[
            (1, "[[proxy]]: write `[proxy]`"),
            (3, "[[workers]]: write `[[worker]]`"),
        ],
    );
    assert_eq!(
        (parsed.config().threads.get(), parsed.config().workers.len()),
        (3, 1)
    );
    let elsewhere = "is a section of its own; write `[[worker]]` on a line";
    for text in [
        "worker = [\"w=127.0.0.1:9000=a:1\"]\n",
        "[proxy]\nworker = \"w=127.0.0.1:9000=a:1\"\n",
    ] {
        let (_, wrong) = &Parsed::of(text).of_file[0];
        assert!(wrong.contains(elsewhere), "{wrong}");
    }
}

#[test]
fn a_key_in_the_wrong_section() {
    assert_problems(
        "listen = \"127.0.0.1:1\"\n[proxy]\nname = \"w\"\n[[worker]]\nthreads = 2\nname = \"w\"\n\
         listen = \"127.0.0.1:2\"\nupstream = \"a:1\"\n[traffic]\nrate = 1\n[admin]\nlisten = \"x\"\n",
        &[
            (
                1,
                "listen: belongs under `[proxy]`; write that line above it",
            ),
            (3, "name: belongs under `[[worker]]`"),
            (5, "threads: belongs under `[proxy]`"),
            (
                9,
                "unknown section `[traffic]`; there are `[proxy]`, `[[worker]]`, `[telemetry.otlp]` and `[engine]`",
            ),
            (
                11,
                "[admin]: is no section but a key under `[proxy]`, and must be text in quotes, as in admin = \
                 \"127.0.0.1:8801\"",
            ),
        ],
    );
    // What it says counts, so that nobody is told that it is absent.
    let parsed = Parsed::of("upstream = [\"a:1\"]\n");
    assert_eq!(
        (parsed.of_file.len(), names(&parsed)),
        (1, vec!["a:1".to_owned()])
    );
}

#[test]
fn a_name_that_is_misspelled() {
    let parsed = assert_problems(
        "[poxy]\nupstraem = []\nupstream-kind = \"server\"\ncert = \"c.pem\"\nfoo = 1\nthreads = \"x\"\n",
        &[
            (1, "[poxy]: write `[proxy]`"),
            (2, "unknown key `upstraem`; did you mean `upstream`?"),
            (
                3,
                "unknown key `upstream-kind`; did you mean `upstream_kind`?",
            ),
            (4, "unknown key `cert`; did you mean `tls_cert`?"),
            (
                5,
                "unknown key `foo`; config.toml in the repository shows every key",
            ),
            (
                6,
                "threads = \"x\": must be a whole number, 0 or more, without quotes, as in threads = 2",
            ),
        ],
    );
    assert!(
        parsed.keys.iter().any(|key| key == "upstream"),
        "it was given"
    );
}

#[test]
fn what_a_worker_lacks_is_told_once_and_the_rest_of_it_is_read() {
    let parsed = assert_problems(
        "[[worker]]\nname = \"w\"\nlisten = \"127.0.0.1:1\"\nupstrem = \"a:1\"\n[[worker]]\nname = 3\n\
         upstream = \"nowhere\"\n",
        &[
            (4, "unknown key `upstrem`; did you mean `upstream`?"),
            (
                5,
                "this `[[worker]]` has no listen; it must be text in quotes, as in listen = \"127.0.0.1:9000\"",
            ),
            (6, "name = 3: must be text in quotes, as in name = \"w0\""),
            (
                7,
                "upstream = \"nowhere\": the port is missing; give HOST:PORT, as in http://127.0.0.1:30000",
            ),
        ],
    );
    assert_eq!(parsed.config().workers[1].upstream.name(), ELSEWHERE);
    assert!(parsed.keys.is_empty(), "the proxy's own are not at fault");
}

#[test]
fn a_line_that_is_no_toml_hides_no_other() {
    let lines = "[proxy]\nlisten = 127.0.0.1:8800\nupstream = http://a:1\nthreads = \"x\"\nadmin \"a\"\nrecord_queue = 7\n";
    let parsed = assert_problems(
        lines,
        &[
            (
                2,
                "listen = 127.0.0.1:8800: must be text in quotes, as in listen = \"127.0.0.1:8800\"",
            ),
            (
                3,
                "upstream = http://a:1: must be a list in brackets, as in upstream = [\"http://127.0.0.1:30000\"]",
            ),
            (
                4,
                "threads = \"x\": must be a whole number, 0 or more, without quotes, as in threads = 2",
            ),
            (
                5,
                "admin: cannot be read; write KEY = VALUE, as in threads = 2, text in quotes, and commas between the \
                 values of a list",
            ),
        ],
    );
    assert_eq!(parsed.config().record_queue.get(), 7);
    assert_problems(
        "[proxy]\nthreads = 1\nthreads = 2\n",
        &[(
            3,
            "threads: stands in the file already; leave one of the two",
        )],
    );
    for text in [
        "{\"proxy\": {\"listen\": \"x\"}}",
        "proxy:\n  listen: 127.0.0.1:8800\n",
    ] {
        let parsed = Parsed::of(text);
        assert!(
            parsed
                .of_file
                .iter()
                .all(|(_, wrong)| wrong.contains("write KEY = VALUE"))
        );
        assert!(!parsed.of_file.is_empty() && parsed.keys.iter().any(|key| key == "upstream"));
    }
}

#[test]
fn a_slip_in_a_header_hides_nothing_and_makes_no_other_fault() {
    let keys = "name = \"w\"\nlisten = \"127.0.0.1:1\"\nupstream = 7\n";
    let of_keys = |line| {
        (
            line,
            "upstream = 7: must be text in quotes, as in upstream = \"http://127.0.0.1:30000\"",
        )
    };
    let threads =
        "threads = \"x\": must be a whole number, 0 or more, without quotes, as in threads = 2";
    for (header, wrong) in [
        ("[[worker]", "[[worker]: write `[[worker]]`"),
        ("[worker]]", "[worker]]: write `[[worker]]`"),
        ("[[worker", "[[worker: write `[[worker]]`"),
        ("worker]]", "worker]]: write `[[worker]]`"),
        ("[[workr]", "[[workr]: write `[[worker]]`"),
        (
            "[[worker]] x = 1",
            "[[worker]] x = 1: write `[[worker]]` on a line of its own",
        ),
    ] {
        let text = format!("[proxy]\nupstream = [\"a:1\"]\nthreads = \"x\"\n{header}\n{keys}");
        let parsed = assert_problems(&text, &[(3, threads), (4, wrong), of_keys(7)]);
        assert_eq!(parsed.config().workers.len(), 1, "{text}");
        assert_eq!(names(&parsed), ["a:1"], "{text}");
    }
    let parsed = assert_problems(
        "[proxy\nthreads = \"x\"\nupstream = [\"a:1\"]\n",
        &[(1, "[proxy: write `[proxy]`"), (2, threads)],
    );
    assert_eq!(names(&parsed), ["a:1"]);
    // What belongs to no section of ours may be anything.
    let parsed = assert_problems(
        "[traffic\nthreads = \"x\"\n",
        &[(
            1,
            "[traffic: a section is written `[proxy]` or `[[worker]]`",
        )],
    );
    assert_eq!(parsed.keys, ["upstream"]);
    // Two in single brackets are two workers, and a second `[proxy]` is not part of the worker above it.
    let text = format!(
        "[worker]\n{keys}[worker]\n{keys}[proxy]\nthreads = 3\n[[worker]]\n{keys}[proxy]\nthreads = \"x\"\n"
    );
    let parsed = assert_problems(
        &text,
        &[
            (1, "[worker]: write `[[worker]]`"),
            of_keys(4),
            (5, "[worker]: write `[[worker]]`"),
            of_keys(8),
            of_keys(14),
            (
                15,
                "[proxy]: stands in the file already; leave one of the two",
            ),
            (16, threads),
        ],
    );
    assert_eq!(
        (parsed.config().workers.len(), parsed.config().threads.get()),
        (3, 3)
    );
}

#[test]
fn a_list_without_its_end_hides_nothing_and_makes_no_other_fault() {
    let open = "upstream = [: this list has no end; write `]` behind its last value";
    let threads =
        "threads = \"x\": must be a whole number, 0 or more, without quotes, as in threads = 2";
    let list = "[proxy]\nupstream = [\n  \"http://a:1\", # ]\n\n";
    let worker = "[[worker]]\nname = \"w\"\nlisten = \"127.0.0.1:1\"\nupstream = \"a:1\"\n";
    let text = format!("{list}record_queue = 7\nthreads = \"x\"\n{worker}");
    let parsed = assert_problems(&text, &[(2, open), (6, threads)]);
    assert_eq!(parsed.config().record_queue.get(), 7);
    assert_eq!(parsed.config().workers.len(), 1);
    assert!(parsed.keys.iter().any(|key| key == "upstream"));
    for text in [
        format!("{list}{worker}"),
        list.to_owned(),
        "[proxy]\nupstream = [".to_owned(),
    ] {
        assert_problems(&text, &[(2, open)]);
    }
    let wrong = "upstream = [\"a:1\": this list has no end; write `]` behind its last value";
    assert_problems("[proxy]\nupstream = [\"a:1\"\nthreads = 2\n", &[(2, wrong)]);
}

#[test]
fn what_a_list_holds() {
    for value in ["[1, \"http://a:1\"]", "[http://a:1]", "[\"a:1\" \"b:1\"]"] {
        let wrong = format!(
            "upstream = {value}: must be a list of values in quotes with commas between them, as in \
             upstream = [\"http://127.0.0.1:30000\"]"
        );
        assert_problems(&format!("[proxy]\nupstream = {value}\n"), &[(2, &wrong)]);
    }
}

#[test]
fn a_good_file_has_no_fault() {
    let parsed = assert_problems(
        "[proxy]\nthreads = 3\ndrain_timeout_s = 5\n[[worker]]\nname = \"w\"\nlisten = \"127.0.0.1:0\"\nupstream = \"a:1\"\n",
        &[],
    );
    assert_eq!(
        (
            parsed.config().threads.get(),
            parsed.config().drain_timeout_s.get().as_secs()
        ),
        (3, 5)
    );
    assert_eq!(parsed.config().workers[0].name, "w");
    assert_problems("", &[]);
}

#[test]
fn each_wrong_value_of_a_list_is_told_and_the_others_are_kept() {
    let parsed = assert_problems(
        "[proxy]\nupstream = [\n\"a\",\n\"b:1\", \"c:x\"]\n",
        &[
            (
                3,
                "upstream = \"a\": the port is missing; give HOST:PORT, as in http://127.0.0.1:30000",
            ),
            (
                4,
                "upstream = \"c:x\": the port must be a number from 1 to 65535, as in http://127.0.0.1:30000",
            ),
        ],
    );
    assert_eq!(names(&parsed), ["b:1"]);
}

#[test]
fn no_part_of_a_secret_is_shown() {
    for line in [
        "admin_token: HIDE",
        "hop_secret \"HIDE\"",
        "threads = 2, hop_secret = \"HIDE\"",
        "threads = 2 hop_secret = \"HIDE\"",
        "hop_secret = \"\"\"\nHIDE1\nHIDE2\n",
        "hop_secret = \"HIDE\nHIDE2\"",
        "hop_secret =\n\"HIDE\"",
    ] {
        let parsed = Parsed::of(&format!("[proxy]\nupstream = [\"http://a:1\"]\n{line}\n"));
        assert!(!parsed.of_file.is_empty(), "{line}");
        for (_, problem) in &parsed.of_file {
            assert!(!problem.contains("HIDE"), "{line}: {problem}");
        }
    }
}
