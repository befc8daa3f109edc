//! The text of the page: its contents, its safety, its size. For its look there is `scripts/report-shots.sh`.

use std::process::Output;

use super::*;
use crate::report::files::ExperimentFile;
use crate::report::load::tests::*;
use crate::report::render::{servers_table, to_markdown, to_text};

/// Text that would break out of HTML or change the direction of text.
const NASTY: &str =
    "</script><script nonce=\"x\">alert('1')</script><!-- \" ' & \u{2028}\u{202e}\u{2066}";

/// A run with everything that a page shows, and hostile text wherever text comes from data.
fn run_of(requests: u32) -> Run {
    let mut table = Table::default();
    for n in 0..i64::from(requests) {
        let sample = Sample::starting(n * 10).host(NASTY);
        let sample = sample.without(&[Moment::WorkerArrival, Moment::WorkerForwarded]);
        let sample = sample.at(Moment::QueueEnd, n * 10 + 20 + n % 97);
        let named = sample.with(|row| row.req_id = Some(format!("{NASTY}-{n}")));
        table.push_row(&named.row());
    }
    let series = (0..requests).map(|n| SeriesRow {
        time: f64::from(n) * 0.01,
        source: "metrics".to_owned(),
        server: NASTY.to_owned(),
        metric: "token_usage".to_owned(),
        value: f64::from(n % 7),
    });
    let settings = json!({ NASTY: NASTY });
    Run {
        name: NASTY.to_owned(),
        table,
        series: series.collect(),
        summary: json!({
            "config": { NASTY: NASTY },
            "verdict": { "grade": "INVALID", "reasons": [NASTY] },
        }),
        file: Some(RunFile {
            label: NASTY.to_owned(),
            settings: settings.as_object().cloned().unwrap_or_default(),
            servers: vec![ServerFile::of(NASTY, "")],
            processes: vec![ProcessFile {
                command: NASTY.to_owned(),
                ..ProcessFile::default()
            }],
            ..RunFile::default()
        }),
        faults: vec![FaultRow::of(0.0, NASTY, "", "")],
        notes: vec![NASTY.to_owned()],
        ..Run::default()
    }
}

fn page_of(runs: Vec<Run>) -> String {
    let experiment = Some(ExperimentFile {
        kind: NASTY.to_owned(),
        keys: vec![NASTY.to_owned()],
        ..ExperimentFile::default()
    });
    render(&Report::of(&Loaded { experiment, runs }))
}

/// The data in a page.
fn data_of(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn hostile_text_stays_text_and_nothing_is_loaded() {
    let page = page_of(vec![run_of(50)]);
    let own = page.replace(CHARTS, "");
    let data = data_of(&page);
    let whole = NASTY.replace(['\u{2028}', '\u{202e}', '\u{2066}'], "");
    let name = data["runs"][0]["run"].as_str().unwrap();
    assert_eq!(name, format!("{whole}\\x2028\\x202e\\x2066"));
    // Characters that change the direction of text are escaped, also in the source.
    assert!(!own.contains(['\u{202e}', '\u{2066}', '\u{2028}']));
    assert_eq!(own.matches("<script").count(), 3);
    assert_eq!(own.matches("</script").count(), 3);
    assert!(!own.contains("alert('1')</script>"));
    // Data is put into the page only as text.
    let ways = "innerHTML|outerHTML|insertAdjacentHTML|document.write|eval(|new Function";
    for way in ways.split('|') {
        assert!(!(dom() + &SCRIPTS.concat()).contains(way), "{way}");
    }
    assert!(!own.contains("{{"), "a mark was left");
    // Nothing is loaded from elsewhere.
    assert!(page.contains("default-src 'none'; script-src 'nonce-"));
    for load in "http: https: //cdn src= @import fetch( XMLHttpRequest url(".split(' ') {
        assert!(!own.contains(load), "{load}");
    }
    // Its links are to its own sections, and the empty icon.
    for link in own.split("href=\"").skip(1) {
        let is_own = link.starts_with('#') || link.starts_with("data:,\"");
        assert!(is_own, "{link}");
    }
}

#[test]
fn a_page_is_bounded_whatever_the_run() {
    let size = |run| page_of(vec![run]).len() - CHARTS.len();
    let (small, large) = (size(run_of(2_000)), size(run_of(12_000)));
    assert!(large < small + small / 5, "{small} {large}");
    let many = page_of((0..40).map(|_| run_of(150)).collect());
    assert!(many.len() < 5_000_000, "{}", many.len());
    // So many single requests are the slowest of a run; those of it that were so until the first token are there too.
    let waterfall = &data_of(&many)["runs"][0]["waterfall"];
    assert_eq!(waterfall["each"], 30);
    // The stages of a request add up to it.
    let request = &waterfall["requests"][0];
    let parts = request["seconds"].as_object().unwrap().values();
    let sum: f64 = parts.map(|seconds| seconds.as_f64().unwrap()).sum();
    let apart = sum - request["total"].as_f64().unwrap();
    assert!(apart.abs() < 1e-4, "{request}");
    let mut servers = run_of(0);
    for n in 0..3_000 {
        let sample = Sample::starting(n * 10).host(&format!("h{n}:1"));
        servers.table.push_row(&sample.row());
    }
    (servers.file, servers.summary) = (None, Value::Null);
    let servers = size(servers);
    assert!(servers < 2_000_000, "{servers}");
}

/// As on the terminal.
#[test]
fn a_run_has_the_share_that_kept_the_goals_and_a_prediction_its_errors() {
    let mut run = run_of(30);
    run.summary["goodput_goals_ms"] = json!({ "ttft": 1e6 });
    run.prediction_errors = [("ttft_ms.p99", 0.373)].into();
    let mut other = run.clone();
    let data = data_of(&page_of(vec![run.clone()]));
    let [figures, errors] = [0, 1].map(|at| &data["runs"][0]["lines"][at]);
    let at = |head: &str| {
        let heads = data["heads"].as_array().unwrap();
        heads.iter().position(|of| of == head).unwrap()
    };
    assert_eq!(figures[at("kept the goals")], "100.0 %");
    assert_eq!(figures[at("ok")], "30");
    assert_eq!(errors[at("TTFT p99")], "37.3 %");
    assert_eq!(errors[at("TTFT p50")], "");
    // Shares that kept different goals do not stand in one column.
    other.summary["goodput_goals_ms"] = json!({ "ttft": 1.0 });
    let data = data_of(&page_of(vec![run, other]));
    let heads = data["heads"].as_array().unwrap();
    assert!(!heads.contains(&json!("kept the goals")));
    let figures = data["runs"][0]["lines"][0].as_array().unwrap();
    assert_eq!(figures.len(), heads.len());
}

#[test]
fn where_nothing_was_counted_no_share_is_shown() {
    let mut run = run_of(200);
    run.summary["window"] = json!({
        "from_s": 100.0, "to_s": 101.0, "left_out_first": 50, "left_out_last": 50,
    });
    let loaded = Loaded::of(vec![run]);
    let report = Report::of(&loaded);
    for text in [to_text(&report, None), to_markdown(&report)] {
        assert!(!text.contains("NaN"), "{text}");
    }
    let mut none = report.runs[0].summary.clone();
    let hosts = ["a:1", "b:1"].map(str::to_owned);
    none.hosts = hosts.map(|host| (host, none.all.clone())).into();
    let table = servers_table(&none, str::to_owned);
    assert_eq!(table.rows[0][..4], ["a:1", "0", "0", "0.00"]);
}

/// Faults are of the whole run.
#[test]
fn why_a_run_failed_and_what_its_figures_are_of_is_told_in_all_formats() {
    let mut run = run_of(200);
    run.faults = vec![FaultRow::of(1.0, "server-1", "stall", "down")];
    run.file.as_mut().unwrap().error = Some("it broke".to_owned());
    let window = json!({ "from_s": 1.0, "to_s": 900.0, "left_out_first": 3, "left_out_last": 0 });
    for window in [Value::Null, window] {
        run.summary["window"] = window.clone();
        let loaded = Loaded::of(vec![run.clone()]);
        let report = Report::of(&loaded);
        let json = report.to_json().to_string();
        for text in [
            to_text(&report, None),
            to_markdown(&report),
            json,
            render(&report),
        ] {
            let is_told = text.contains("those of the whole run, not only of its window");
            assert_eq!(is_told, !window.is_null(), "{text}");
            let is_of_window = text.contains(" that arrived from ");
            assert_eq!(is_of_window, !window.is_null(), "{text}");
            assert_says(&text, "failed: it broke");
        }
    }
}

#[test]
fn waiting_in_a_router_is_in_the_picture() {
    let mut run = run_of(20);
    let cells = "req_id=held, outcome=ok, arrival_time=0.1, queue_time_in_router=2.5";
    run.table.push_line(cells);
    // It came to its server long after the last arrival.
    let late = "req_id=late, outcome=ok, host=h:1, clock_state=offset, arrival_time=0.1, queue_time_start=300, queue_time_end=304, \
        pure_queue_time=4, finish_time=305";
    run.table.push_line(late);
    let data = &data_of(&page_of(vec![run]))["runs"][0];
    let causes = data["waiting_over"]["causes"].as_array().unwrap();
    let sum = |of: &Value| -> f64 {
        let seconds = of["seconds"].as_array().unwrap().iter();
        seconds.filter_map(Value::as_f64).sum()
    };
    let mut routers = causes.iter().filter(|of| of["cause"] == "router");
    assert_eq!(routers.next().map(sum), Some(2.5));
    let waiting = &data["waiting"];
    let all = ["waited_s", "in_router_s", "in_proxy_s"].map(|key| waiting[key].as_f64().unwrap());
    let all: f64 = all.iter().sum();
    let shown: f64 = causes.iter().map(sum).sum();
    assert!(
        all > 6.5 && (shown - all).abs() < 0.01 * all,
        "{shown} {all}"
    );
}

#[test]
fn an_experiment_without_a_run_has_a_page() {
    let data = data_of(&page_of(Vec::new()));
    assert_eq!(data["runs"], json!([]));
}

/// A script with the parts of a browser that charts need. It draws charts as SVG, and prints the pairs of labels that overlap.
const OVERLAPS: &str = r#"
const media = { matches: false, addEventListener() {} }, data = '{"runs":[],"listed":[],"shown":[]}';
Object.assign(globalThis, { matchMedia: () => media, addEventListener() {}, location: { hash: "" }, IntersectionObserver: class {},
  document: { getElementById: () => ({ textContent: data }) } });
const echarts = exports;
SCRIPTS
delete globalThis.document;
function overlaps(option, height) {
  const chart = echarts.init(null, null, { renderer: "svg", ssr: true, width: 700, height });
  chart.setOption(option(700));
  const texts = chart.getZr().storage.getDisplayList(true).filter(of => of.style.text && of.style.text !== "1/1").map(of => {
    const rect = of.getBoundingRect().clone();
    if (of.transform) rect.applyTransform(of.transform);
    return [of.style.text, rect];
  });
  texts.forEach(([text, rect], at) => texts.slice(at + 1).forEach(([other, its]) => { if (rect.intersect(its)) console.log(text, "|", other); }));
  chart.dispose();
}
const tables = [1, 2, 3, 4, 5].map(n => ({ "server-1": { kill: `${n} s after the begin`, ready: 20 + n }, "server-2": { kill: "never" } }));
overlaps(sweepOption([{ name: "all", figures: [1, 2, 3, 4, 5], off: [] }], tables, "failure_schedule", "requests a second"), 300);
const stage = { name: "queue", label: "queue", order: 1, mean: 1 };
const runs = tables.map(of => ({ run: `failure_schedule=${JSON.stringify(of).repeat(2)}`, all: { mean: 1, stages: [stage] } }));
overlaps(whereOption(runs), 110 + 34 * runs.length);
"#;

/// Values of settings may be tables, which have long labels. Not tested without Node.
#[test]
fn labels_of_charts_do_not_overlap() {
    let script = OVERLAPS.replace("SCRIPTS", &(dom() + &SCRIPTS[..3].concat()));
    let said = node(&(CHARTS.to_owned() + &script));
    assert_eq!(said.unwrap_or_default(), ["", ""]);
}

/// What a script says, and its errors; `None` without Node.
fn node(script: &str) -> Option<[String; 2]> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.js");
    std::fs::write(&path, script).unwrap();
    let output = std::process::Command::new("node").arg(&path).output();
    let Output { stdout, stderr, .. } = output.ok()?;
    Some([stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()))
}

/// Values at which the unit or the rounding changes, and others; none halfway between two roundings.
const SECONDS: [f64; 13] = [
    0.0, 1e-9, 4e-7, 0.000_08, 0.000_994, 0.000_995, 0.001, 0.031_5, 0.099_49, 0.0995, 1.005,
    1.115, -0.004_26,
];

/// The page's script formats durations as Rust does. Not tested without Node.
#[test]
fn a_duration_is_formatted_alike_on_the_page_and_in_text() {
    let [from, to] = ["const known", "const number"].map(|text| DOM.find(text).unwrap());
    let shown = format!("console.log({SECONDS:?}.map(duration).join(\"\\n\"))");
    if let Some([said, _]) = node(&format!("{}; {shown}", &DOM[from..to])) {
        let said = said.replace('\u{a0}', " ");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines, SECONDS.map(crate::units::duration));
    }
}
