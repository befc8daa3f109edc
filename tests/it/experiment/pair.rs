//! Experiments with servers that prefill and servers that decode, behind the real routers.

use std::collections::BTreeSet;
use std::path::Path;

use queuescope::report::reader;
use queuescope::report::runs::RunReport;
use queuescope::request::columns::ColumnId;
use queuescope::table::Table;

use super::deployed::words;
use super::started::Planned;
use crate::support::router::Which;

/// One server of each kind behind a router.
fn plan(router: Which, lines: &str) -> Planned {
    let router = Path::new(env!("CARGO_MANIFEST_DIR")).join(router.command());
    let router = router.display();
    Planned::new(&format!(
        "num_prefill = 1\nnum_decode = 1\nrouter_program = '{router}'\nrouting_policy = 'round_robin'\n{lines}"
    ))
}

fn loaded(plan: &Planned) -> reader::Run {
    let loaded = reader::load(&[plan.path("")]).unwrap();
    loaded.runs.into_iter().next().unwrap()
}

/// Each of these makes one part of a pair the narrow one, and the report names it, by the rows of generator and proxy.
#[test]
fn what_is_narrow_is_named() {
    for (lines, title) in [
        ("decode.max_total_tokens = 200", "Decode is full"),
        ("decode.max_running_requests = 2", "Decode's batch is full"),
        (
            "prefill.prefill_floor_ms = 40\nprefill.chunked_prefill_size = 30",
            "Prefill is too slow",
        ),
        ("prefill.transfer_ms = 40", "The link is too slow"),
    ] {
        let lines = format!("num_prompts = 40\nbackend = 'sglang-oai-chat'\n{lines}");
        let plan = plan(Which::Sglang032, &lines);
        plan.run("node", &["--random-output-len", "30"])
            .assert_status(&[0, 3]);
        let run = loaded(&plan);
        let report = RunReport::of(&run);
        let titles: Vec<&str> = report.findings.iter().map(|of| &of.title[..]).collect();
        assert!(
            titles.iter().any(|found| found.starts_with(title)),
            "{lines}: {titles:#?}"
        );
        plan.assert_nothing_is_left();
    }
}

/// Whichever server dies, each request has one row, and the rows of those that failed tell why.
#[test]
fn a_killed_server_of_a_pair_is_seen() {
    for (router, down) in [(Which::Smg113, 1), (Which::Sglang032, 2)] {
        let plan = plan(
            router,
            &format!(
                "num_prompts = 200\nrequest_rate = 100\nfailure_schedule = {{ 0.5 = [{down}] }}\nsim.transfer_lost_s = 0.1"
            ),
        );
        plan.run("routing", &["--random-output-len", "30"])
            .assert_status(&[0, 3]);
        let run = loaded(&plan);
        assert_eq!(run.table.len(), 200);
        let [prefill, decode] = &run.file.as_ref().unwrap().servers[..] else {
            panic!("{:?}", run.file);
        };
        assert_eq!((&*prefill.name, &*decode.name), ("prefill-1", "decode-1"));
        let of_proxy = Table::read(&run.dir.join("proxy.csv")).unwrap();
        let ids = words(&of_proxy, "req_id");
        assert_eq!((of_proxy.len(), ids.len()), (200, 200), "one row each");
        let good = |row: &usize| run.table.text(ColumnId::outcome, *row) == "ok";
        for row in (0..200).filter(good) {
            let hosts = [ColumnId::prefill_host, ColumnId::host].map(|of| run.table.text(of, row));
            assert_eq!(hosts, [&prefill.host, &decode.host]);
            assert!(
                run.table
                    .number(ColumnId::decode_bootstrap_time, row)
                    .is_some()
            );
        }
        assert!((0..200).any(|row| good(&row)));
        let failed: BTreeSet<&str> = (0..200)
            .filter(|row| !good(row))
            .map(|row| run.table.text(ColumnId::error, row))
            .collect();
        assert!(!failed.is_empty());
        plan.assert_nothing_is_left();
    }
}

#[test]
fn what_does_not_go_with_a_pair_is_told_by_its_key() {
    for (lines, expected) in [
        (
            "num_prefill = 1",
            "num_prefill = 1, num_decode = 0: they go together",
        ),
        (
            "num_prefill = 1\nnum_decode = 1\nrouter = 'builtin'",
            "num_prefill: only a router that is started here",
        ),
        (
            "num_prefill = 1\nnum_decode = 1\ndecode.max_running = 4",
            "decode.max_running: no such key",
        ),
        (
            "num_prefill = 1\nnum_decode = 1\nprefill.transfer_ms = 'x'",
            "prefill.transfer_ms = x: must be a number",
        ),
    ] {
        let done = Planned::new(lines).run("node", &["--print-plan"]);
        done.assert_status(&[2]);
        assert!(done.err.contains(expected), "{}", done.err);
    }
}
