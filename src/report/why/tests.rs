use std::path::Path;

use super::*;
use crate::clock::NANOS;
use crate::report::load::tests::*;
use crate::request::{STAGES, StageSet};

/// A server of two slots. A request with a long prompt, which takes 10 s, and a short one run when another arrives.
fn run() -> Run {
    let row = |(id, prompt, queued, started, ended): (&str, u32, f64, f64, f64)| {
        format!(
            "req_id={id}, host=a:1, actual_prompt_tokens={prompt}, actual_total_tokens={}, queue_time_start={queued}, \
            queue_time_end={started}, pure_queue_time={}, finish_time={ended}",
            prompt + 10,
            started - queued
        )
    };
    let rows = [
        ("long", 96_000, 0.0, 0.0, 10.0),
        ("short", 20, 0.0, 0.0, 4.0),
        ("a", 20, 1.0, 4.0, 5.0),
        ("b", 20, 2.0, 5.0, 6.0),
        ("c", 20, 3.0, 6.0, 7.0),
        ("d", 20, 4.5, 7.0, 8.0),
        ("e", 20, 5.0, 8.0, 9.0),
        ("f", 20, 6.0, 9.0, 10.0),
    ];
    Run::of_lines(rows.map(row))
}

#[test]
fn the_cause_of_a_wait_and_its_holders_are_named() {
    let run = run();
    let mut why = WaitReport::of(&run);
    adds_up(&why, &run.table);
    let wait = why.of_row(&run.table, 3).unwrap();
    let first = &wait["held_up_by"][0];
    assert_eq!(wait["waited_s"], 3.0);
    assert_eq!(wait["cause"], "slots");
    assert_eq!(first["req_id"], "long");
    assert_eq!(first["seconds"], 1.5);
    let sentence = "waited 3.00 s: all 2 slots were taken; longest by long (96k-token prompt)";
    assert_eq!(wait["words"], sentence);
    let long = why.of_row(&run.table, 0).unwrap();
    assert!(long["words"].is_null() && long["waited_s"] == 0.0, "{long}");
    assert_eq!(why.servers[0].slots(), Some((2, "found in the rows")));
    let long = "Prompts above 32k tokens are 12 % of the requests";
    assert_dominant(&why.groups, long);
    // Prompts of unknown length have no length in the text, and do not count as long.
    let mut unknown = why.groups.clone();
    unknown.retain(|of| of.by == "prompt");
    for of in &mut unknown {
        if !of.name.starts_with("up to") {
            of.name = "unknown".to_owned();
        }
    }
    assert_eq!(dominant_group(&unknown), None);
    let tenants = why.groups.iter().map(|of| Group {
        by: "x-tenant".into(),
        ..of.clone()
    });
    let tenants = Vec::from_iter(tenants);
    assert_dominant(&tenants, "Requests of the x-tenant 32k to 128k are");
    // If all are alike, there are no groups.
    why.groups.retain(|group| group.name.starts_with("up to"));
    assert_eq!(dominant_group(&why.groups), None);
}

fn assert_dominant(groups: &[Group], beginning: &str) {
    let sentence = dominant_group(groups).unwrap();
    assert!(sentence.starts_with(beginning), "{sentence}");
}

/// The seconds for which each held up others, and those that are attributed to none, add up to all waiting; so do the causes.
fn adds_up(why: &WaitReport, table: &Table) {
    let wait = |row| Some(Wait::in_server_queue(&|column| table.value(column, row))?.nanos);
    let whole = seconds((0..table.len()).filter_map(wait).sum());
    let each = |row| why.of_row(table, row)?["held_up_others_s"].as_f64();
    let held = (0..table.len()).filter_map(each).sum::<f64>() + why.unattributed_s;
    let apart = (held - whole).abs();
    assert!(apart <= 1e-9 * whole.max(1.0), "{held} {whole}");
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
    let made = ["rows.csv", "report/run/run/requests.csv"].map(|name| data.join(name));
    let folders =
        ["h200/rows", "h200/full"].map(|name| std::fs::read_dir(data.join(name)).unwrap());
    let real: Vec<_> = folders
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(real.len() >= 22, "{real:?}");
    for path in made.iter().chain(&real) {
        let run = Run::of_table(Table::read(path));
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
        let told = name.split_once("-slots");
        let told = told.map(|(_, of)| of.split('-').next().unwrap().parse().unwrap());
        let expected = match told.or(is_full.then_some(32)) {
            Some(slots) => (Cause::Slots, vec![slots]),
            None => (Cause::Prefill, vec![]),
        };
        let (cause, share) = why.shares()[0];
        assert_eq!((cause, slots), expected, "{name}");
        // Long prompts, more than the server can do, wait for their prefill too.
        let is_long = name.starts_with("random-2048-64-rate1");
        let least = if is_long { 0.6 } else { 0.95 };
        assert!(share >= least, "{name}: {share}");
    }
}

/// A server's own clock tells neither when a wait began on the run's, nor what the run's files have of that time.
#[test]
fn nothing_is_put_at_a_time_of_a_clock_that_does_not_compare() {
    for (clock, began, cause) in [
        ("clock_state=raw", 2.5, Cause::Unknown),
        ("clock_state=offset, clock_offset=9", 10.5, Cause::Down),
    ] {
        let times = "queue_time_start=10.5, queue_time_end=11, pure_queue_time=0.5, finish_time=12";
        let row = format!("host=a:1, arrival_time=2.5, {clock}, {times}");
        let mut run = Run::of_lines([row]);
        run.faults = vec![FaultRow::of(10.0, "a:1", "kill", "down")];
        let mut waited = Vec::new();
        let of_run = WaitReport::of(&run);
        of_run.each(&run.table, |at, of| waited.push((at, of().main())));
        assert_eq!(waited, [(began, Some(cause))], "{clock}");
    }
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
    // Another rank of the same server: what is told of a server is told of each of its ranks.
    let rank = "host=a:1, dp_rank=1, queue_time_start=1, queue_time_end=2, pure_queue_time=1, finish_time=3";
    run.table.push_line(rank);
    let assert_limits = |run: &Run, expected: [Value; 2]| {
        let servers = WaitReport::of(run).to_json(&run.table)["servers"].take();
        let keys = ["slots", "slots_source", "pool_tokens"];
        let found = [0, 1].map(|server| json!(keys.map(|key| &servers[server][key])));
        assert_eq!(found, expected);
    };
    let found = json!([2, "found in the rows", 16_384]);
    assert_limits(&run, [found, json!([null, null, 16_384])]);
    let mut told = run.clone().at_servers(&[("a:1", "a:1")]);
    told.file.as_mut().unwrap().servers[0].max_running_requests = Some(1);
    let each = |slots: u32, source| [(); 2].map(|()| json!([slots, source, 16_384]));
    assert_limits(&told, each(1, "its /get_server_info"));
    told.given_slots = Some(16);
    assert_limits(&told, each(16, "given"));
}

proptest::proptest! {
    /// Whatever is unknown: of the cells of each row up to two, those with these numbers.
    #[test]
    fn parts_add_up_to_the_whole(
        rows in proptest::collection::vec((0_usize..4, 0..3, 0..500, 0..90, 0..300, [0_usize..14, 0..14]), 0..50),
    ) {
        let row = |(host, rank, queued, waited, ran, unknown): (usize, i32, i32, i32, i32, [usize; 2])| {
            let [queued, waited, ran] = [queued, waited, ran].map(|tenths| f64::from(tenths) / 10.0);
            let cells = [
                format!("host={}", ["", "a:1", "b:1", "c:1"][host]),
                format!("dp_rank={rank}"),
                format!("queue_time_start={queued}"),
                format!("queue_time_end={}", queued + waited),
                format!("pure_queue_time={waited}"),
                format!("finish_time={}", queued + waited + ran),
                format!("queue_time_in_router={waited}"),
            ];
            let known = (0..cells.len()).filter(|at| !unknown.contains(at));
            known.map(|at| &*cells[at]).collect::<Vec<_>>().join(", ")
        };
        let run = Run::of_lines(rows.into_iter().map(row));
        adds_up(&WaitReport::of(&run), &run.table);
    }
}

/// Of the last requests alone it is not known what else ran.
#[test]
fn a_few_rows_do_not_tell_that_others_had_the_server() {
    let run = run();
    let all = 0..run.table.len();
    let rows: Vec<Row> = all.flat_map(|row| run.table.request(row)).collect();
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
    assert_eq!(wait["words"], said);
    assert_eq!(wait["held_up_by"], json!([]));
}
