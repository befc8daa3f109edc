use std::path::Path;

use super::*;
use crate::table::Cell;

/// A server of two slots. A long prompt that is answered for 10 s and a short one are there when one more comes.
fn run() -> Run {
    let mut table = Table::default();
    let mut row = |id: &'static str, prompt: f64, queued: f64, started: f64, ended: f64| {
        let cell = |name: &'static str, value| (name, Cell::Number(value));
        table.push([
            ("req_id", Cell::Id(id)),
            ("host", Cell::Word("a:1")),
            (
                "endpoint",
                Cell::Word(if prompt > 1e3 {
                    "/v1/completions"
                } else {
                    "/generate"
                }),
            ),
            cell("actual_prompt_tokens", prompt),
            cell("actual_output_tokens", 10.0),
            cell("actual_total_tokens", prompt + 10.0),
            cell("queue_time_start", queued),
            cell("queue_time_end", started),
            cell("pure_queue_time", started - queued),
            cell("finish_time", ended),
        ]);
    };
    row("long", 96_000.0, 0.0, 0.0, 10.0);
    row("short", 20.0, 0.0, 0.0, 4.0);
    let later = [1.0, 2.0, 3.0, 4.5, 5.0, 6.0];
    for (started, (id, at)) in (4..).zip(["a", "b", "c", "d", "e", "f"].into_iter().zip(later)) {
        let started = f64::from(started);
        row(id, 20.0, at, started, started + 1.0);
    }
    Run {
        table,
        ..Run::default()
    }
}

#[test]
fn a_request_is_told_what_it_waited_for_and_who_held_it_up() {
    let run = run();
    let mut why = Why::of(&run);
    adds_up(&why, &run.table);
    let told = why.of_row(&run.table, 3).unwrap();
    assert_eq!(
        (told.waited, told.cause, told.slots),
        (3.0, Cause::Slots, Some(2))
    );
    assert_eq!(told.by[0], ("long", Some(96_000), 1.5));
    let sentence = "waited 3.00 s: all 2 slots were taken; longest by long (96k-token prompt)";
    assert_eq!(told.sentence(), sentence);
    let (by, said) = lopsided(&why.groups).unwrap();
    assert_eq!(by, "prompt");
    assert!(
        said.starts_with("Prompts above 32k tokens are 12 % of the requests"),
        "{said}"
    );
    // Where all are alike nothing is to be said of any.
    why.groups.retain(|group| group.name.starts_with("up to"));
    assert_eq!(lopsided(&why.groups), None);
}

/// What each held up others, and what nobody did, are all that was waited; so are the causes.
fn adds_up(why: &Why, table: &Table) {
    let waits = (0..table.len()).filter_map(|row| waited(table, row));
    let whole = waits.sum::<i64>() as f64 / NANOS as f64;
    let held = why.held_up_sum() + why.by_nobody;
    let causes: f64 = why.causes.iter().sum::<f64>();
    let near = |sum: f64, of: f64| assert!((sum - of).abs() <= 1e-9 * of.max(1.0), "{sum} {of}");
    near(why.waited, whole);
    near(held, whole);
    near(causes, whole + why.in_router);
}

#[test]
fn parts_add_up_to_the_whole_in_every_file_of_rows() {
    let mut waiting = 0;
    for name in [
        "rows",
        "golden/report/h200",
        "golden/report/joined-requests",
        "golden/report/merged-requests",
    ] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.join(format!("tests/data/{name}.csv"));
        let Ok(table) = Table::read(&path) else {
            continue;
        };
        let run = Run {
            table,
            ..Run::default()
        };
        let why = Why::of(&run);
        waiting += usize::from(why.waited > 0.0);
        adds_up(&why, &run.table);
        assert!(why.to_json(&run.table)["sequences"].as_u64() == Some(why.sequences));
    }
    assert!(waiting >= 2, "{waiting}");
}
