//! Which files are loads of the command `whatif`, and what of their requests counts.

use std::path::Path;

use queuescope::clock::{NANOS, Stamp};
use queuescope::request::{Row, Side};
use queuescope::table::cells::RowWriter;

use super::{file, rewritten, run, said, told};
use crate::support::{assert_says, read_rows};

/// What a run's summary says of its rows is heeded: a part of a load does not tell what its servers had to do.
#[test]
fn a_summary_tells_parts_of_loads_and_what_is_not_to_be_believed() {
    let (folder, path) = rewritten(["cached_tokens", ""]);
    let (dir, rows) = (folder.path(), folder.path().join("requests.csv"));
    std::fs::rename(path, &rows).unwrap();
    let page = dir.join("page.html").display().to_string();
    let (given, name) = (dir.to_str().unwrap(), dir.file_name().unwrap().display());
    let summary = |text: &str| std::fs::write(dir.join("summary.json"), text).unwrap();
    summary(r#"{"config": {"shard": "0/2"}}"#);
    let error = run(&[given, "--set", "rate=2"]).unwrap_err();
    assert_says(&error, "is shard 0/2 of a load");
    assert_says(&error, "queuescope report --merge");
    let window = |first: u64| {
        let members = "\"to_s\": 99.0, \"left_out_last\": 0, \"rule\": \"\"";
        format!("{{\"window\": {{\"from_s\": {first}, \"left_out_first\": {first}, {members}}}}}")
    };
    let degraded = r#"{"verdict": {"grade": "DEGRADED", "reasons": ["late"]}}"#;
    for (text, mark, has_window) in [
        (degraded, Some("DEGRADED"), false),
        (&window(9), None, true),
        (&window(0), None, false),
        // Goals are those of the command, here none.
        (r#"{"goodput_goals_ms": {"e2el": 600000}}"#, None, false),
        // All of it is in this one.
        (r#"{"config": {"shard": "0/1"}}"#, None, false),
    ] {
        summary(text);
        let shown = said(&[given], "--set rate=2");
        let marked = mark.map_or(format!("{name}"), |mark| format!("{name} {mark}"));
        assert_says(&shown, &format!("\nmeasured: {marked} "));
        assert_eq!(shown.contains("are of its window"), has_window, "{shown}");
        assert!(!shown.contains("left out: 1 request"), "{shown}");
        assert!(!shown.contains("kept the goals"), "{shown}");
        let told = told(&[given], &format!("--force --html {page}"));
        assert_eq!(told["loads"][0]["mark"].as_str(), mark);
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(page.contains(r#""goodput_goals_ms":{}"#));
        assert!(!page.contains(r#""goodput_goals_ms":{""#));
    }
    let text = std::fs::read_to_string(&rows).unwrap();
    let text = text.replacen(",True,ok,", ",False,server_error,", 1);
    std::fs::write(&rows, text).unwrap();
    let note = format!("note: {name}: left out: 1 request (failed, of several sequences, or ");
    assert_says(&said(&[given], "--set rate=2"), &note);
    // It kept no goal, as in the report.
    let all = told(&[given], "--goodput e2el:600000");
    let kept = &all["loads"][0]["measured"]["goodput_share"];
    let off = kept.as_f64().unwrap() * 240.0 - 239.0;
    assert!(off.abs() < 1e-6, "{kept}");
    // Which kept one of a latency that the rows lack is not known.
    let measured = told(&[given], "--goodput prefill_time:600000")["loads"][0]["measured"].take();
    assert!(measured["goodput_share"].is_null(), "{measured}");
    // Given twice, by its folder and its file, it counts once.
    let twice = told(&[rows.to_str().unwrap(), given], "");
    let both = [&twice, &all].map(|of| (&of["loads"][0]["requests"], &of["fit"]["requests"]));
    assert_eq!(both[0], both[1], "{twice}");
    assert_eq!(twice["loads"].as_array().map(Vec::len), Some(1));
}

/// Writes the rows of a run anew, each changed.
fn changed(of: &str, to: &Path, base: Stamp, change: impl Fn(&mut Row)) -> String {
    let rows = read_rows(Path::new(&file(of)));
    let mut out = RowWriter::new(std::fs::File::create(to).unwrap(), base).unwrap();
    for at in 0..rows.len() {
        let mut row = rows.request(at).remove(0);
        change(&mut row);
        out.write(&row).unwrap();
    }
    out.finish().unwrap();
    to.to_str().unwrap().to_owned()
}

/// Writes a load's rows as a proxy of this side would, with times of the epoch.
fn recorded(folder: &Path, side: Side) -> String {
    let epoch = Stamp::from_nanos(-1_795_000_000 * NANOS);
    let path = folder.join(format!("{}.csv", side.name()));
    changed("slots16", &path, epoch, |row| {
        row.seen_by = Some(side);
        // A hop does not know it.
        row.arrival_time.take_if(|_| side == Side::Hop);
    })
}

/// Several loads are predicted each by itself, under its name.
#[test]
fn several_loads_are_predicted_each_by_itself() {
    let (load, other) = (file("slots16"), file("shared"));
    let set = format!("--set rate=1.5 --fit {load}");
    let (whole, both) = (told(&[&load], &set), told(&[&load, &other], &set));
    assert_eq!(both["predictions"].as_array().map(Vec::len), Some(2));
    assert_eq!(both["predictions"][0], whole["predictions"][0]);
    let shown = said(&[&load, &other], &set);
    let name = both["loads"][1]["name"].as_str().unwrap();
    assert_says(&shown, &format!("\npredicted: {name}: rate=1.5 "));
}

#[test]
fn rows_of_hops_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hop = recorded(folder.path(), Side::Hop);
    let error = run(&[&hop]).unwrap_err();
    let told = "hop.csv: no request of one sequence went well and tells its arrival";
    assert_says(&error, told);
    let hint = "queuescope report --join";
    assert_says(&error, hint);
    // Those of a front, with or without those of a hop, are no hop's.
    let text = std::fs::read_to_string(&hop).unwrap();
    let mixed = text.replacen(",hop,", ",front,", 1);
    let head = text.lines().next().unwrap();
    let rows = folder.path().join("requests.csv");
    for (text, given) in [(&*mixed, &rows), (head, &folder.path().to_owned())] {
        std::fs::write(&rows, text).unwrap();
        let error = run(&[given.to_str().unwrap()]).unwrap_err();
        assert_says(&error, "no request of one sequence went well");
        assert!(!error.contains(hint), "{error}");
    }
}

/// A request of several sequences is left out, and that is said; a load of nothing else has nothing to replay.
#[test]
fn requests_of_several_sequences_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let one = recorded(folder.path(), Side::Front);
    let text = std::fs::read_to_string(&one).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let several = |count: usize| {
        let doubled = rows.lines().take(count).flat_map(|row| {
            let (id, rest) = row.split_once(',').unwrap();
            [0, 1].map(|index| format!("{id}#{index},{rest}\n"))
        });
        let others = rows.lines().skip(count).map(|row| format!("{row}\n"));
        let text: String = doubled.chain(others).collect();
        std::fs::write(&one, format!("{head}\n{text}")).unwrap();
    };
    several(2);
    let line = format!("--set rate=1 --fit {}", file("slots16"));
    assert_eq!(told(&[&one], &line)["loads"][0]["requests"], 238);
    assert_says(
        &said(&[&one], &line),
        "left out: 2 requests (failed, of several sequences",
    );
    several(usize::MAX);
    assert_says(&run(&[&one]).unwrap_err(), "front.csv: no request");
}

/// Data-parallel ranks of one host have queues and slots of their own, as servers have.
#[test]
fn ranks_are_predicted_as_servers_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ranks.csv");
    let first = "127.0.0.1:30001".to_owned();
    let ranks = changed("two-servers", &path, Stamp::from_nanos(0), |row| {
        let host = row.host.replace(first.clone());
        row.dp_rank = Some(u64::from(host != row.host));
    });
    let [servers, ranks] =
        [file("two-servers"), ranks].map(|path| told(&[&path], "--set num_gpus=2,3"));
    for (is, was) in ["predictions", "validation"].map(|of| (&ranks[of], &servers[of])) {
        for (is, was) in is.as_array().unwrap().iter().zip(was.as_array().unwrap()) {
            for name in ["ttft_ms", "request_throughput", "predicted"] {
                assert_eq!(is[name], was[name]);
            }
        }
    }
}
