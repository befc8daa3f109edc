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

#[test]
fn gaps_are_taken_of_the_seconds_that_both_tell_of() {
    let mut rows = of_records(&two(), &servers()).rows;
    for (time, value) in [(0.9, 1.0), (1.9, 3.0), (7.0, 9.0)] {
        rows.push(SeriesRow {
            time,
            source: METRICS.to_owned(),
            server: "server-2".to_owned(),
            metric: RUNNING.to_owned(),
            value,
        });
    }
    let gaps = gaps(&rows);
    assert_eq!(
        gaps,
        [Gap {
            server: "server-2".to_owned(),
            metric: RUNNING.to_owned(),
            scrapes: 2,
            of_records: 0.75,
            of_metrics: 2.0,
            apart: 1.25,
        }]
    );
    assert!(gaps_text(&gaps).contains("server-2"));
    assert_eq!(gaps_text(&[]), "");
    assert_eq!(gaps_line(&[]), None);
    let other = Gap {
        server: "server-1".to_owned(),
        of_records: 1.25,
        apart: 1.5,
        ..gaps[0].clone()
    };
    assert_eq!(
        gaps_line(&[gaps[0].clone(), other]).unwrap(),
        "running 2.0 counted 4.0 told, one scrape of a server apart by 1.5 at most"
    );
}
