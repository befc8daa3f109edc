//! Streamed chat through the real routers, whose answers tell no times: the servers' own spans do. Every row's moments
//! are those of the server's log; and where the way of the spans is slow, in disorder, lossy, or dead behind us, no
//! request is touched and what is missing is counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use queuescope::engine::forward;
use queuescope::engine::receiver::{Limits, Receiver, Settings};
use queuescope::engine::span::{EngineSpan, Part, Stage};
use queuescope::request::outcome::Outcome;
use queuescope::sim::config::Telemetry;
use queuescope::sim::server::Sim;
use queuescope::sim::{Outcome as ServedOutcome, Served};
use queuescope::telemetry::otlp::settings::{self, Otlp, Protocol};
use queuescope::telemetry::prometheus::Metrics;
use rand::Rng as _;
use rand::seq::SliceRandom as _;

use crate::support::collector::Collector;
use crate::support::generator::{self, flags};
use crate::support::proxy::{Front, Row, known_workers};
use crate::support::router::{Router, Which, free_port};
use crate::support::stack::traffic;
use crate::support::wire::until;

/// Seconds: how well a moment is to be known.
const TOLERANCE: f64 = 1e-3;

/// Two servers that send their spans to a front, with a router between.
struct Chain {
    sims: Vec<Sim>,
    front: Front,
    way: Way,
    _router: Router,
}

/// What goes wrong with spans before they come there: each export is late, or lost with this chance.
#[derive(Clone, Copy, Default)]
struct Trouble {
    delay: Duration,
    loss: f64,
    is_shuffled: bool,
}

impl Trouble {
    /// Passes on to `to` what `collector` gets.
    async fn pass(self, collector: Collector, to: String) {
        let client = TraceServiceClient::connect(to).await.unwrap();
        let mut passed = 0;
        loop {
            for mut export in collector.exports().split_off(passed) {
                passed += 1;
                if rand::rng().random_bool(self.loss) {
                    continue;
                }
                let of_resources = export.resource_spans.iter_mut();
                let scopes = of_resources.flat_map(|all| &mut all.scope_spans);
                for scope in scopes.filter(|_| self.is_shuffled) {
                    scope.spans.shuffle(&mut rand::rng());
                }
                let mut client = client.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(self.delay).await;
                    client.export(export).await
                });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What lets servers' spans through to the front, and knows which came so far.
struct Way {
    receiver: Receiver,
    passed: Arc<Mutex<Vec<EngineSpan>>>,
}

impl Way {
    fn to(front: SocketAddr) -> Way {
        let given = Otlp {
            endpoint: Some(format!("http://{front}")),
            protocol: Some(Protocol::Grpc),
            ..Otlp::default()
        };
        let resolved = settings::Settings::resolve(&given, "test", &|_| None).unwrap();
        let settings = Settings {
            listener: std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
            forward: Some(forward::Settings {
                to: resolved.unwrap(),
                queue_bytes: 1 << 30,
            }),
            limits: Limits::default(),
        };
        let passed = Arc::new(Mutex::new(Vec::new()));
        let store = passed.clone();
        let sink = move |spans| {
            store.lock().unwrap().extend(spans);
            true
        };
        let metrics = Metrics::new().unwrap().clone();
        let receiver = Receiver::start(settings, Arc::new(sink), metrics).unwrap();
        Way { receiver, passed }
    }
}

impl Chain {
    /// `wait` seconds: how long a row waits for spans.
    async fn start(which: Which, wait: u64, forward: Option<&str>, trouble: Trouble) -> Chain {
        let (spans, router) = (free_port(), free_port());
        let way = Way::to(spans);
        let collector = Collector::start().await;
        let endpoint = collector.grpc.to_string();
        let to = format!("http://{}", way.receiver.addr());
        tokio::spawn(trouble.pass(collector, to));
        let sim = |_| {
            generator::sim(|config| {
                // So few slots that requests queue in the server.
                config.profile.max_running_requests = 4;
                config.telemetry = Telemetry {
                    enable_trace: true,
                    otlp_traces_endpoint: endpoint.clone(),
                    ..Telemetry::default()
                };
            })
        };
        let sims: Vec<Sim> = (0..2).map(sim).collect();
        let addrs: Vec<SocketAddr> = sims.iter().map(Sim::addr).collect();
        let (hops, workers) = known_workers(&addrs);
        let front = Front::with(&[router], |config| {
            config.workers = workers;
            config.engine.wait_s = toml_seconds(wait);
            config.engine.traces.listen = Some(spans);
            config.engine.traces.forward_to = forward.map(str::to_owned);
        })
        .await;
        let router = Router::start_at(which, router, &hops, &[]).await;
        Chain {
            sims,
            front,
            way,
            _router: router,
        }
    }

    /// So many streamed chats, 50 a second, which all must go well; the rows of all that were traced, by request id.
    async fn chats(self, count: usize) -> Run {
        let prompts = count.to_string();
        let load = "--backend sglang-oai-chat --request-rate 50 --random-input-len 64 --random-output-len 16 \
            --random-range-ratio 0.5 --num-prompts";
        let flags = [flags(load), vec![&prompts]].concat();
        let run = traffic(self.front.addr(), "chat-", &flags).await;
        for record in &run.records {
            assert_eq!(record.outcome(), Outcome::Ok, "{record:?}");
        }
        assert_eq!(run.records.len(), count);
        let text = |front: &Front| front.proxy.metrics().text();
        // All rows have gone out when nobody waits any more.
        until("the last row", || {
            text(&self.front).contains("queuescope_engine_waiting 0\n")
        })
        .await;
        let served = self.sims.iter().flat_map(Sim::served).filter_map(|served| {
            assert_eq!(served.outcome, ServedOutcome::Finished);
            let id = served.x_request_id.clone()?;
            id.starts_with("chat-").then_some((id, served))
        });
        let served: BTreeMap<String, Served> = served.collect();
        let metrics = text(&self.front);
        let rows = self.front.rows().await;
        let rows = rows
            .into_iter()
            .filter(|row| row["req_id"].starts_with("chat-"));
        Run {
            rows: rows.collect(),
            passed: std::mem::take(&mut *self.way.passed.lock().unwrap()),
            served,
            metrics,
        }
    }
}

/// What came of a run.
struct Run {
    rows: Vec<Row>,
    /// The spans that were not lost.
    passed: Vec<EngineSpan>,
    served: BTreeMap<String, Served>,
    metrics: String,
}

impl Run {
    /// Rows to which the spans told everything; what they told of any row is what the server's log says.
    fn told(&self) -> usize {
        let told = self
            .rows
            .iter()
            .filter(|row| row["timing_source"] == "trace");
        told.filter(|row| self.same(row)).count()
    }

    /// Ids of the engine of which a root, a scheduler and its wait came: no more is needed.
    fn came(&self) -> Vec<&str> {
        let is_root = |span: &&EngineSpan| matches!(span.part, Part::Root(_));
        let of = |part: fn(&Part) -> bool, above: &EngineSpan| {
            let mut all = self.passed.iter();
            let below = move |span: &&EngineSpan| {
                (span.trace, span.parent) == (above.trace, above.id) && part(&span.part)
            };
            all.find(below)
        };
        let roots = self.passed.iter().filter(is_root).filter(|root| {
            let scheduler = of(|part| matches!(part, Part::Scheduler(_)), root);
            scheduler
                .and_then(|scheduler| of(|part| *part == Part::Stage(Stage::Waiting), scheduler))
                .is_some()
        });
        let rids = roots.filter_map(|root| match &root.part {
            Part::Root(root) => root.rid.as_deref(),
            _ => None,
        });
        rids.collect()
    }

    /// Compares what the row has; says whether it has everything.
    fn same(&self, row: &Row) -> bool {
        let served = &self.served[&row["req_id"]];
        let cell = |column: &str| row[column].parse::<f64>().ok();
        let mut all = true;
        let [received, start, end, first] = [
            served.received,
            served.queue_start,
            served.queue_end,
            served.first_token,
        ]
        .map(|at| at.unwrap());
        for (column, truth) in [
            ("tokenize_time", start.since(received)),
            ("pure_queue_time", end.since(start)),
            ("queue_time_in_server", first.since(received)),
        ] {
            let Some(told) = cell(column) else {
                all = false;
                continue;
            };
            assert!((told - truth).abs() < TOLERANCE, "{column} {told} {truth}");
        }
        // The engine's moments are put on our clock, with an error that the row states.
        let error = TOLERANCE + cell("clock_offset_error").unwrap_or(f64::NAN);
        for (column, truth) in [
            ("server_created_time", received),
            ("queue_time_start", start),
            ("queue_time_end", end),
            ("server_first_token_time", first),
        ] {
            let truth = truth.seconds();
            let Some(told) = cell(column) else {
                all = false;
                continue;
            };
            assert!((told - truth).abs() < error, "{column} {told} {truth}");
        }
        all
    }

    /// Requests without times of the engine, for this reason.
    fn missing(&self, reason: &str) -> usize {
        let mut of_reason = self.metrics.lines().filter(|line| {
            line.starts_with("queuescope_timing_missing_total")
                && line.contains(&format!("reason=\"{reason}\""))
                && line.contains("/v1/chat/completions")
        });
        let count = of_reason.next().and_then(|line| line.rsplit(' ').next());
        count.map_or(0, |count| count.parse().unwrap())
    }
}

fn toml_seconds<T: serde::de::DeserializeOwned>(seconds: u64) -> T {
    serde_json::from_value(serde_json::json!(seconds)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_streamed_chat_has_the_servers_moments() {
    for which in Which::ALL {
        let chain = Chain::start(which, 20, None, Trouble::default()).await;
        let run = chain.chats(400).await;
        // 99.9 % of them, which is all.
        assert_eq!((run.rows.len(), run.told()), (400, 400), "{which:?}");
        let queued = run
            .rows
            .iter()
            .filter(|row| row["pure_queue_time"] != "0.000000000");
        assert!(queued.count() > 0, "nothing waited");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_and_shuffled_spans_are_joined_and_the_lost_are_counted() {
    let trouble = Trouble {
        delay: Duration::from_secs(2),
        loss: 0.05,
        is_shuffled: true,
    };
    // Nobody listens on this one: what is behind us is dead.
    let dead = format!("http://{}", free_port());
    let chain = Chain::start(Which::Sglang032, 20, Some(&dead), trouble).await;
    let run = chain.chats(400).await;
    let told = run.told();
    assert_eq!(run.rows.len(), 400);
    let missing = run
        .rows
        .iter()
        .filter(|row| row["pure_queue_time"].is_empty());
    let missing = missing.count();
    assert_eq!(run.missing("no_spans") + run.missing("incomplete"), missing);
    // Of batches 1 in 20 is lost, so much is missing; but every row has what came of it.
    assert!(missing > 0, "{told} told");
    let came = run.came();
    let rows = run.rows.iter();
    let whole: Vec<&Row> = rows
        .filter(|row| came.contains(&row["engine_id"].as_str()))
        .collect();
    assert!(whole.len() > 100, "{} came", whole.len());
    for row in whole {
        assert!(row["timing_source"] == "trace" && run.same(row), "{row:?}");
    }
    let sent = "queuescope_engine_trace_forwards_total{outcome=\"unreachable\"} 0\n";
    assert!(!run.metrics.contains(sent), "the dead collector is counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_come_too_late_leave_rows_without_them() {
    let trouble = Trouble {
        delay: Duration::from_secs(10),
        ..Trouble::default()
    };
    let chain = Chain::start(Which::Sglang032, 1, None, trouble).await;
    let run = tokio::time::timeout(Duration::from_secs(60), chain.chats(100)).await;
    let run = run.unwrap();
    assert_eq!((run.rows.len(), run.told()), (100, 0));
    assert_eq!(run.missing("no_spans"), 100, "{}", run.metrics);
}
