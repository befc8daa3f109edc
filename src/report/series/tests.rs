use super::*;
use crate::table::Cell;

/// Rows of a host each, of these columns.
fn table(columns: &[&str], rows: &[(&str, &[f64])]) -> Table {
    let mut table = Table::default();
    for (n, (host, row)) in rows.iter().enumerate() {
        let id = format!("x-{n}");
        let numbers = columns.iter().zip(*row);
        let numbers = numbers.map(|(name, value)| (*name, Cell::Number(*value)));
        let words = [("req_id", Cell::Id(&id)), ("host", Cell::Word(host))];
        table.push(words.into_iter().chain(numbers));
    }
    table
}

fn servers() -> Vec<ServerFile> {
    let server = |n: u32| ServerFile {
        name: format!("server-{n}"),
        host: format!("127.0.0.1:3000{n}"),
        ..ServerFile::default()
    };
    (1..3).map(server).collect()
}

fn values(counted: &Counted, server: &str, metric: &str) -> Vec<f64> {
    let rows = counted.rows.iter();
    let these = rows.filter(|row| row.server == server && row.metric == metric);
    these.map(|row| row.value).collect()
}

/// Two requests on two servers: the first is queued for half a second and runs for one; the second runs for two.
fn two() -> Table {
    let columns = [
        "arrival_time",
        "router_send_time",
        "queue_time_start",
        "queue_time_end",
        "finish_time",
        "end_time",
    ];
    let first = [0.0, 0.25, 0.25, 0.75, 1.75, 1.75];
    let second = [0.5, 0.5, 0.5, 0.5, 2.5, 2.5];
    let rows = [
        ("127.0.0.1:30001", &first[..]),
        ("127.0.0.1:30002", &second[..]),
    ];
    table(&columns, &rows)
}

#[test]
fn seconds_of_two_requests_by_hand() {
    let counted = of_records(&two(), &servers());
    assert_eq!(counted.notes, Vec::<String>::new());
    assert_eq!(values(&counted, "", "waiting"), [0.25, 0.0, 0.0]);
    assert_eq!(values(&counted, "", "queued"), [0.5, 0.0, 0.0]);
    assert_eq!(values(&counted, "server-1", "running"), [0.25, 0.75, 0.0]);
    assert_eq!(values(&counted, "server-2", "running"), [0.5, 1.0, 1.0]);
    assert_eq!(values(&counted, "", "running"), [0.75, 1.75, 1.0]);
    assert_eq!(values(&counted, "", "running_max"), [2.0, 2.0, 1.0]);
    assert_eq!(values(&counted, "", "concurrency"), [1.5, 1.75, 1.0]);
    assert!(counted.rows.is_sorted_by(|a, b| a.time <= b.time));
}

#[test]
fn what_is_unknown_is_said_and_not_zero() {
    let rows = table(&["arrival_time", "end_time"], &[("", &[0.0, 1.5][..]); 2]);
    let counted = of_records(&rows, &[]);
    assert_eq!(values(&counted, "", "concurrency"), [2.0, 2.0]);
    assert_eq!(values(&counted, "", "unknown"), [2.0, 2.0]);
    assert!(values(&counted, "", "running").is_empty());
    assert_eq!(counted.notes.len(), 3);
    assert_eq!(
        counted.notes[2],
        "running: 2 of 2 have no queue_time_end or no finish_time and are not counted"
    );
    assert!(of_records(&Table::default(), &[]).rows.is_empty());
}
