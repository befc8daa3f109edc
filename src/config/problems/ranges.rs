//! Values out of their range, and what is said of them.

use super::*;

/// What is said of one line.
fn said(line: &str) -> String {
    let parsed = Parsed::of(&format!("[proxy]\n{line}\n"));
    let mut found = parsed.of_file.into_iter().map(|(_, problem)| problem);
    let said = found.next().unwrap_or_default();
    assert_eq!(found.next(), None, "{line}");
    said
}

#[test]
fn a_value_out_of_range() {
    for (line, problem) in [
        ("threads = 0", "threads = 0: must be from 1 to 1024"),
        ("threads = 1025", "threads = 1025: must be from 1 to 1024"),
        (
            "record_queue = 0",
            "record_queue = 0: must be from 1 to 16777216",
        ),
        (
            "max_connections = 0",
            "max_connections = 0: must be from 1 to 1000000",
        ),
        (
            "client_idle_timeout_s = 0",
            "client_idle_timeout_s = 0: must be at least 1",
        ),
        (
            "request_head_max_bytes = 255",
            "request_head_max_bytes = 255: must be from 256 to 1048575",
        ),
        (
            "request_body_max_bytes = 0",
            "request_body_max_bytes = 0: must be at least 1",
        ),
        (
            "drain_timeout_s = -1",
            "drain_timeout_s = -1: must be from 0 to 86400 seconds",
        ),
        (
            "upstream_read_timeout_s = nan",
            "upstream_read_timeout_s = nan: must be from 0.001 to 86400 seconds",
        ),
        (
            "upstream_out_s = 0",
            "upstream_out_s = 0: must be from 0.001 to 86400 seconds",
        ),
        (
            "records_rotate_mb = -1",
            "records_rotate_mb = -1: must be 0 (no limit), or from 0.001 to 1000000 MB",
        ),
        (
            "records_rotate_hours = 1e9",
            "records_rotate_hours = 1e9: must be 0 (no limit), or from 0.001 to 87600 hours",
        ),
        (
            "listen = \"8800\"",
            "listen = \"8800\": not an address to listen on; give IP:PORT, as in 127.0.0.1:8800, or localhost:PORT",
        ),
        (
            "listen = \"xlocalhost:7\"",
            "listen = \"xlocalhost:7\": not an address to listen on; give IP:PORT, as in 127.0.0.1:8800, or \
             localhost:PORT",
        ),
        (
            "upstream = [\"https://a:x\"]",
            "upstream = \"https://a:x\": the port must be a number from 1 to 65535, as in http://127.0.0.1:30000",
        ),
        (
            "upstream = [\"http://user:secret@a:1\"]",
            "upstream = …: only a host and a port can be given, as in http://127.0.0.1:30000",
        ),
        ("drain_timeout_s = 0", ""),
        ("listen = \"localhost:0\"", ""),
    ] {
        assert_eq!(said(line), problem);
    }
}

#[test]
fn a_workers_name_can_stand_in_a_header_and_in_a_path() {
    let said = |key: &str, value: &str| {
        let given = match key {
            "name" => String::new(),
            _ => "name = \"w\"\n".to_owned(),
        };
        let text = format!(
            "[[worker]]\n{key} = {value:?}\n{given}listen = \"127.0.0.1:0\"\nupstream = \"a:1\"\n"
        );
        let found = Parsed::of(&text).of_file;
        assert!(found.len() <= 1, "{found:?}");
        found
            .first()
            .map(|(_, problem)| problem.clone())
            .unwrap_or_default()
    };
    for name in ["w0", "a.b_c:d-E9", "logs", &"x".repeat(64)] {
        assert_eq!(said("name", name), "");
    }
    for name in ["a\nb", "", "größe;x", "a b", "a/b", &"x".repeat(65)] {
        let problem = said("name", name);
        assert!(problem.contains(": must be 1 to 64 of"), "{problem}");
    }
    assert!(said("name", "log").contains("\"log\": is taken"));
    for host in ["gpu1:30000", "[::1]:30000"] {
        assert_eq!(said("host", host), "");
    }
    for host in ["", "a;clock=b", "a b", "größe"] {
        let problem = said("host", host);
        assert!(problem.starts_with("host = "), "{problem}");
        assert!(problem.contains(": must be 1 to 128 of"), "{problem}");
    }
}
