use super::*;
use crate::report::table::Cell;

fn table(rows: &[&[(&str, f64)]], hosts: &[&str]) -> Table {
    let mut table = Table::default();
    for (n, (row, host)) in rows.iter().zip(hosts).enumerate() {
        let id = format!("x-{n}");
        let mut cells = vec![("req_id", Cell::Id(&id)), ("host", Cell::Word(host))];
        cells.extend(
            row.iter()
                .map(|(name, value)| (*name, Cell::Number(*value))),
        );
        table.push(cells);
    }
    table.finish(None);
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
    table(
        &[
            &[
                ("arrival_time", 0.0),
                ("router_send_time", 0.25),
                ("queue_time_start", 0.25),
                ("queue_time_end", 0.75),
                ("finish_time", 1.75),
                ("end_time", 1.75),
            ],
            &[
                ("arrival_time", 0.5),
                ("router_send_time", 0.5),
                ("queue_time_start", 0.5),
                ("queue_time_end", 0.5),
                ("finish_time", 2.5),
                ("end_time", 2.5),
            ],
        ],
        &["127.0.0.1:30001", "127.0.0.1:30002"],
    )
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
    let cells: &[(&str, f64)] = &[("arrival_time", 0.0), ("end_time", 1.5)];
    let counted = of_records(&table(&[cells, cells], &["", ""]), &[]);
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
