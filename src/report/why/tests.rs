use std::path::Path;

use super::*;
use crate::clock::NANOS;
use crate::report::files::{ProcessFile, RunFile, SeriesRow, ServerFile};
use crate::request::stages::StageSet;
use crate::request::timeline::STAGES;
use crate::table::Cell;

/// A server of two slots. A request with a long prompt, which takes 10 s, and a short one run when another arrives.
fn run() -> Run {
    labelled(|_| "")
}

/// The same with labels by request id.
fn labelled(labels: impl Fn(&str) -> &'static str) -> Run {
    let mut table = Table::default();
    let mut row = |id: &'static str, prompt: f64, queued: f64, started: f64, ended: f64| {
        let cell = |name: &'static str, value| (name, Cell::Number(value));
        table.push([
            ("req_id", Cell::Id(id)),
            ("host", Cell::Word("a:1")),
            ("labels", Cell::Word(labels(id))),
            cell("actual_prompt_tokens", prompt),
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
    Run::of_table(table)
}

#[test]
fn the_cause_of_a_wait_and_its_holders_are_named() {
    let run = run();
    let mut why = WaitReport::of(&run);
    adds_up(&why, &run.table);
    let wait = why.of_row(&run.table, 3).unwrap();
    let first = &wait["held_up_by"][0];
    assert_eq!(
        [&wait["waited_s"], &wait["cause"], &first["req_id"]],
        [&json!(3.0), &json!("slots"), &json!("long")]
    );
    assert_eq!(first["seconds"], 1.5);
    let sentence = "waited 3.00 s: all 2 slots were taken; longest by long (96k-token prompt)";
    assert_eq!(wait["words"], sentence);
    let long = why.of_row(&run.table, 0).unwrap();
    assert!(long["words"].is_null() && long["waited_s"] == 0.0, "{long}");
    assert_eq!(why.servers[0].slots(), Some((2, "found in the rows")));
    let (by, sentence) = dominant_group(&why.groups).unwrap();
    assert_eq!(by, "prompt");
    assert!(
        sentence.starts_with("Prompts above 32k tokens are 12 % of the requests"),
        "{sentence}"
    );
    // Prompts of unknown length have no length in the text, and do not count as long.
    let mut unknown = why.groups.clone();
    unknown.retain(|of| of.by == "prompt");
    for of in &mut unknown {
        if !of.name.starts_with("up to") {
            of.name = "unknown".to_owned();
        }
    }
    assert_eq!(dominant_group(&unknown), None);
    // If all are alike, there are no groups.
    why.groups.retain(|group| group.name.starts_with("up to"));
    assert_eq!(dominant_group(&why.groups), None);
}

/// The seconds for which each held up others, and those that are attributed to none, add up to all waiting; so do the causes.
fn adds_up(why: &WaitReport, table: &Table) {
    let wait = |row| Some(Wait::in_server_queue(&|column| table.value(column, row))?.nanos);
    let whole = seconds((0..table.len()).filter_map(wait).sum());
    let each = |row| why.of_row(table, row)?["held_up_others_s"].as_f64();
    let held = (0..table.len()).filter_map(each).sum::<f64>() + why.unattributed_s;
    assert!(
        (held - whole).abs() <= 1e-9 * whole.max(1.0),
        "{held} {whole}"
    );
    assert_eq!(seconds(why.waited()), whole);
}

/// The page gives a cause the color of the stage of the same name.
#[test]
fn causes_that_are_stages_have_their_names() {
    let is_stage = |cause: &Cause| cause.is_of_pair() || *cause == Cause::Router;
    let known = |cause: &Cause| STAGES.iter().any(|stage| stage.name == cause.heading());
    let stages: Vec<Cause> = Cause::ALL.into_iter().filter(is_stage).collect();
    assert_eq!(stages.len(), 5);
    let unknown: Vec<&Cause> = stages.iter().filter(|cause| !known(cause)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert_eq!(Cause::Proxy.heading(), StageSet::PROXY.name());
}

#[test]
fn parts_add_up_to_the_whole_in_every_file_of_rows() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let made = ["rows", "golden/report/h200"];
    let made = made.map(|name| data.join(format!("{name}.csv")));
    let files = |folder| {
        std::fs::read_dir(data.join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let mut real: Vec<_> = files("h200/rows").chain(files("h200/full")).collect();
    real.sort();
    assert!(real.len() >= 22, "{real:?}");
    for path in made.iter().chain(&real) {
        let table = Table::read(path).unwrap();
        let run = Run::of_table(table);
        let why = WaitReport::of(&run);
        adds_up(&why, &run.table);
        assert!(why.to_json(&run.table)["sequences"].as_u64() == Some(why.sequences));
        if !real.contains(path) {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_full = path.parent().unwrap().ends_with("full");
        if is_full && why.waited() < 2 * NANOS {
            continue;
        }
        // Except for the run of 16 slots, the others never ran as many as they could: each waited for the batch under way.
        let slots = why.servers.iter().filter_map(Server::slots);
        let slots: Vec<u32> = slots.map(|of| of.0).collect();
        let told = name
            .split_once("-slots")
            .map(|(_, of)| of.split('-').next().unwrap());
        let told = told.map(|slots| slots.parse().unwrap());
        let expected = match told.or(is_full.then_some(32)) {
            Some(slots) => (Cause::Slots, vec![slots]),
            None => (Cause::Prefill, vec![]),
        };
        let (cause, share) = why.shares()[0];
        assert_eq!((cause, slots), expected, "{name}");
        // Long prompts, more than the server can do, wait for their prefill too.
        let least = if name.starts_with("random-2048-64-rate1") {
            0.6
        } else {
            0.95
        };
        assert!(share >= least, "{name}: {share}");
    }
}

/// Four requests ran at once on this server. Later two run while one waits, and another of unknown times is there.
#[test]
fn where_a_request_without_times_was_others_are_not_blamed() {
    let run = |clock: &'static str, untimed: &[(&'static str, Cell<'static>)]| {
        let mut table = Table::default();
        let at = |name: &'static str, value| (name, Cell::Number(value));
        let host = ("host", Cell::Word("a:1"));
        let later = [(5.0, 5.0, 9.0), (5.0, 5.0, 9.0), (5.0, 8.0, 9.0)];
        for (queued, started, ended) in [(0.0, 0.0, 4.0); 4].into_iter().chain(later) {
            table.push([
                host,
                ("clock_state", Cell::Word(clock)),
                at("clock_offset", 100.0),
                at("queue_time_start", queued),
                at("queue_time_end", started),
                at("pure_queue_time", started - queued),
                at("finish_time", ended),
                at("server_finish_time", ended),
            ]);
        }
        if !untimed.is_empty() {
            table.push([&[host, at("forwarded_time", 6.0)], untimed].concat());
        }
        let why = WaitReport::of(&Run::of_table(table));
        let [others, unknown] =
            [Cause::NotSeen, Cause::Unknown].map(|of| seconds(why.causes.of(of)));
        (others, unknown, why.untimed, why.unattributed_s)
    };
    assert_eq!(run("offset", &[]), (3.0, 0.0, 0, 3.0));
    let ended = ("end_time", Cell::Number(8.5));
    let word = |column, word| [ended, (column, Cell::Word(word))];
    // It was at this server; at an unknown one; or ended at an unknown time.
    let nobody = [word("host", ""), word("unread", "background")];
    for row in [&[ended][..], &nobody[0], &nobody[1]] {
        assert_eq!(run("offset", row), (1.0, 2.0, 1, 3.0), "{row:?}");
    }
    let far = "nor how far the clock is";
    assert_eq!(run("raw", &[ended]), (0.0, 3.0, 1, 3.0), "{far}");
    // It was at another server, or at none.
    assert_eq!(run("offset", &word("host", "b:1")), (3.0, 0.0, 1, 3.0));
    assert_eq!(
        run("offset", &word("ended_in", "proxy")),
        (3.0, 0.0, 0, 3.0)
    );
}

#[test]
fn tenants_are_groups() {
    let mut run = labelled(|id| match id {
        "long" => "x-team=t; x-tenant=a",
        _ => "x-team=t; x-tenant=b",
    });
    let why = WaitReport::of(&run);
    // All are of the same team.
    let groups = why.groups.iter().filter(|of| of.by.starts_with("x-"));
    let [a, b] = groups.collect::<Vec<_>>()[..] else {
        panic!("{:?}", why.groups)
    };
    assert_eq!((a.requests, b.requests, a.bore, b.bore), (1, 7, 0.0, 1.0));
    assert!((a.caused - 0.5).abs() < 0.05 && (a.caused + b.caused - 1.0).abs() < 1e-9);
    let shown = tables::tables(&why);
    let all = ["all", "8", "", "17.50 s", "17.50 s"];
    assert_eq!(shown[1].rows[0], all, "{shown:?}");
    // The shares do not add up to 1, as some waiting is attributed to none.
    run.table.push([
        ("host", Cell::Word("b:1")),
        ("queue_time_start", Cell::Number(100.0)),
        ("queue_time_end", Cell::Number(117.5)),
        ("pure_queue_time", Cell::Number(17.5)),
    ]);
    let why = WaitReport::of(&run);
    let caused = why.groups.iter().filter(|of| of.by == "x-tenant");
    let caused: f64 = caused.map(|of| of.caused).sum();
    assert!((caused - 0.5).abs() < 1e-9, "{caused}");
    assert_eq!(tables::tables(&why)[1].rows[0][3..], ["17.50 s", "35.00 s"]);
    let both = [a.clone(), b.clone()];
    let (by, sentence) = dominant_group(&both).unwrap();
    assert_eq!(by, "x-tenant");
    assert!(
        sentence.starts_with("Requests of the x-tenant a are"),
        "{sentence}"
    );
}

#[test]
fn limits_of_files_are_used_and_their_source_is_named() {
    let mut run = run();
    run.series = vec![SeriesRow {
        time: 1.0,
        source: "metrics".into(),
        server: "a:1".into(),
        metric: "max_total_num_tokens".into(),
        value: 16_384.0,
    }];
    let limits = |run: &Run| {
        let server = WaitReport::of(run).to_json(&run.table)["servers"][0].take();
        ["slots", "slots_source", "pool_tokens"]
            .map(|key| server[key].to_string())
            .join(" ")
    };
    let found = r#"2 "found in the rows" 16384"#;
    assert_eq!(limits(&run), found);
    run.file = Some(RunFile {
        processes: vec![ProcessFile {
            name: "a:1".into(),
            command: "sglang serve --max-running-requests 2 --max-total-tokens 200000".into(),
            ..ProcessFile::default()
        }],
        ..RunFile::default()
    });
    let started = r#"2 "its command" 200000"#;
    assert_eq!(limits(&run), started);
    run.file.as_mut().unwrap().servers = vec![ServerFile {
        name: "a:1".into(),
        host: "a:1".into(),
        max_running_requests: Some(1),
        ..ServerFile::default()
    }];
    assert!(limits(&run).starts_with(r#"1 "its /get_server_info""#));
}

/// Ranks are servers to whoever tells of each server.
#[test]
fn slots_that_are_told_are_those_of_each_rank() {
    let mut table = Table::default();
    for rank in [0.0, 1.0] {
        table.push([
            ("host", Cell::Word("a:1")),
            ("dp_rank", Cell::Number(rank)),
            ("queue_time_start", Cell::Number(1.0)),
            ("queue_time_end", Cell::Number(2.0)),
            ("pure_queue_time", Cell::Number(1.0)),
            ("finish_time", Cell::Number(3.0)),
        ]);
    }
    let mut run = Run::of_table(table);
    run.given_slots = Some(16);
    let why = WaitReport::of(&run);
    let slots: Vec<_> = why.servers.iter().map(Server::slots).collect();
    assert_eq!(slots, [Some((16, "given")); 2]);
}

proptest::proptest! {
    #[test]
    fn parts_add_up_to_the_whole(
        rows in proptest::collection::vec((0_u32..4, 0_u32..3, 0_u32..500, 0_u32..90, 0_u32..300, 0_u32..9), 0..50),
    ) {
        let mut table = Table::default();
        for (host, rank, queued, waited, ran, lacks) in rows {
            let seconds = |tenths: u32| f64::from(tenths) / 10.0;
            let at = |name: &'static str, tenths| (name, Cell::Number(seconds(tenths)));
            let mut cells = vec![
                ("host", Cell::Word(["", "a:1", "b:1", "c:1"][host as usize])),
                at("queue_time_start", queued),
                at("queue_time_end", queued + waited),
                at("pure_queue_time", waited),
                at("finish_time", queued + waited + ran),
                at("queue_time_in_router", waited),
                ("dp_rank", Cell::Number(f64::from(rank))),
            ];
            // Some times are unknown.
            if lacks > 0 && lacks < 5 {
                cells.remove(lacks as usize);
            }
            table.push(cells);
        }
        let run = Run::of_table(table);
        adds_up(&WaitReport::of(&run), &run.table);
    }
}

/// Of the last requests alone it is not known what else ran.
#[test]
fn a_few_rows_do_not_tell_that_others_had_the_server() {
    let run = run();
    let rows: Vec<Row> = (0..run.table.len())
        .flat_map(|row| run.table.request(row))
        .collect();
    // `d` waits for a slot, with all rows; of the others but one, less than before ran.
    let all = wait_sentence([&rows[5]].into_iter().chain(&rows[..5]).chain(&rows[6..]));
    assert!(all.unwrap().contains("; longest by "));
    let last = [&rows[7], &rows[0], &rows[1], &rows[6]];
    let said = "waited 3.00 s: what it waited for is not known";
    assert_eq!(wait_sentence(last).unwrap(), said);
    // Nor who held it up: on the page, the words would be followed by others.
    let mut run = Run::default();
    last.iter().for_each(|row| run.table.push_row(row));
    run.is_excerpt = true;
    let wait = WaitReport::of(&run).of_row(&run.table, 0).unwrap();
    assert_eq!(
        (&wait["words"], &wait["held_up_by"]),
        (&json!(said), &json!([]))
    );
}
