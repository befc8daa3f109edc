//! The keys of an experiment: flags and file have them from this table. Those of the generator beside them are its own
//! flags (`generator.rs`).

use toml::Value;

/// A key.
#[derive(Debug)]
pub struct Key {
    /// Its flag, without the dashes before it; the name of the key has `_` for `-`.
    pub flag: &'static str,
    /// What it takes.
    pub takes: Takes,
    /// The value where none is given, as TOML; `None`: no value, or what the program that gets it takes for one.
    pub default: Option<&'static str>,
    /// Whose experiments have it.
    pub of: Of,
    /// Where the help shows it.
    pub group: &'static str,
    /// What it is.
    pub help: &'static str,
}

/// What a key takes. Each may be a list of such values as well: then the experiment varies it.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// A text.
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A whole number of at least, at most.
    Whole(i64, i64),
    /// A number above, at most.
    Number(f64, f64),
    /// `true` or `false`.
    Flag,
    /// A list of texts; varied by a list of lists.
    Texts,
    /// A table of seconds and servers.
    Schedule,
    /// The name of a fault, or a table of its fields.
    Fault,
}

/// Which experiments have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// All.
    Both,
    /// `queuescope routing` alone.
    Routing,
}

/// What an experiment is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One server.
    Node,
    /// Several servers behind a router.
    Routing,
}

const SERVER: &str = "Servers";
const ROUTER: &str = "Router";
const EXPERIMENT: &str = "Experiment";
const FAILURES: &str = "Failures";
const SEARCH: &str = "Highest rate";
const MOST: i64 = 1 << 40;

/// The routers.
pub const ROUTERS: [&str; 4] = ["none", "builtin", "sglang-router", "external"];
/// The engines.
pub const ENGINES: [&str; 3] = ["sim", "sglang", "external"];

/// All keys but the generator's own.
pub const KEYS: &[Key] = &[
    key(
        "engine",
        Takes::OneOf(&ENGINES),
        Some("\"sim\""),
        SERVER,
        "What serves: the simulator, SGLang started here, or servers that run already (--servers)",
    ),
    key(
        "servers",
        Takes::Texts,
        None,
        SERVER,
        "URLs of running servers, for --engine external",
    ),
    key(
        "model-path",
        Takes::Text,
        None,
        SERVER,
        "The model: a folder or a name on the hub; the simulator only says it",
    ),
    key(
        "gpu-id",
        Takes::Whole(0, 1024),
        Some("0"),
        SERVER,
        "First GPU (SGLang's --base-gpu-id)",
    ),
    key(
        "tp-size",
        Takes::Whole(1, 1024),
        Some("1"),
        SERVER,
        "GPUs that share a model",
    ),
    key(
        "max-running-requests",
        Takes::Whole(1, MOST),
        Some("256"),
        SERVER,
        "Requests that a server runs at once; the others wait",
    ),
    key(
        "mem-fraction-static",
        Takes::Number(0.0, 1.0),
        Some("0.9"),
        SERVER,
        "Share of the GPU's memory for weights and KV cache",
    ),
    key(
        "chunked-prefill-size",
        Takes::Whole(-1, MOST),
        None,
        SERVER,
        "Longer prefills are cut into pieces of so many tokens; -1: never",
    ),
    key(
        "schedule-conservativeness",
        Takes::Number(0.0, 1e3),
        None,
        SERVER,
        "How much of what running requests may yet make is kept free",
    ),
    key(
        "quantization",
        Takes::Text,
        None,
        SERVER,
        "SGLang's --quantization",
    ),
    key(
        "enable-torch-compile",
        Takes::Flag,
        Some("false"),
        SERVER,
        "SGLang's --enable-torch-compile",
    ),
    key(
        "enable-metrics",
        Takes::Flag,
        Some("true"),
        SERVER,
        "Servers tell when requests queued and ran, and serve /metrics",
    ),
    key(
        "python",
        Takes::Text,
        Some("\"python3\""),
        SERVER,
        "The Python that has SGLang",
    ),
    key(
        "base-port",
        Takes::Whole(0, 65_535),
        Some("30001"),
        SERVER,
        "Port of the first server, the others follow; 0: free ports",
    ),
    key(
        "start-timeout-s",
        Takes::Number(0.0, 1e5),
        None,
        SERVER,
        "A start may take so long, seconds [default: 30 for the simulator, 600 for SGLang]",
    ),
    routing(
        "num-gpus",
        Takes::Whole(1, 1024),
        Some("4"),
        SERVER,
        "Servers to start, each with its own GPUs",
    ),
    routing(
        "servers-per-gpu",
        Takes::Whole(1, 64),
        Some("1"),
        SERVER,
        "Servers that share GPUs; each needs a mem_fraction_static of its own share, such as 0.4 for two",
    ),
    key(
        "router",
        Takes::OneOf(&ROUTERS),
        None,
        ROUTER,
        "What shares requests out: queuescope's balancer, a sglang-router started here, or one that runs (--router-url) [default: none for node, builtin for routing, with running servers too]",
    ),
    key(
        "router-url",
        Takes::Text,
        None,
        ROUTER,
        "URL of the running router, for --router external",
    ),
    key(
        "router-program",
        Takes::Text,
        None,
        ROUTER,
        "Program of --router sglang-router [default: smg of PATH, or what scripts/router.sh installed]",
    ),
    routing(
        "routing-policy",
        Takes::Text,
        Some("\"cache_aware\""),
        ROUTER,
        "Who gets the next request: cache_aware, round_robin, random, shortest_queue, power_of_two; or what the router knows",
    ),
    key(
        "front",
        Takes::Flag,
        None,
        ROUTER,
        "Put queuescope's proxy in front of all [default: where there is a router]",
    ),
    key(
        "hops",
        Takes::Flag,
        None,
        ROUTER,
        "Put a hop of queuescope's before each server: shows the router's own queue and which server served [default: where a router other than builtin is]",
    ),
    key(
        "dcgm-url",
        Takes::Text,
        None,
        EXPERIMENT,
        "URL of a DCGM exporter's /metrics, for use and memory of GPUs [default: nvidia-smi, where it is and SGLang is on this machine]",
    ),
    key(
        "collect-per-node-metrics",
        Takes::Flag,
        Some("true"),
        EXPERIMENT,
        "Read each server's /metrics every second",
    ),
    key(
        "preset",
        Takes::OneOf(&super::presets::NAMES),
        None,
        EXPERIMENT,
        "Values that suit an aim; keys that are given win",
    ),
    key(
        "repeats",
        Takes::Whole(1, 1000),
        Some("1"),
        EXPERIMENT,
        "Do each run so often, with seeds one apart",
    ),
    key(
        "enable-node-failures",
        Takes::Flag,
        None,
        FAILURES,
        "Do what --failure-schedule says [default: where there is one]",
    ),
    key(
        "failure-schedule",
        Takes::Schedule,
        None,
        FAILURES,
        "Servers that are down from so many seconds on: '{ 30 = [1, 2], 60 = [] }'",
    ),
    key(
        "failure-kind",
        Takes::Fault,
        Some("\"kill\""),
        FAILURES,
        "How they fail: kill (the process), or what a hop can do: refuse, reset, stall, slow, cut",
    ),
    key(
        "find-max-rate",
        Takes::Flag,
        Some("false"),
        SEARCH,
        "Search the highest request rate that meets --goodput; begins at --request-rate, or 10",
    ),
    key(
        "goodput-share",
        Takes::Number(0.0, 0.999),
        Some("0.95"),
        SEARCH,
        "Share of all requests that must keep the limits",
    ),
    key(
        "rate-precision",
        Takes::Number(0.0, 1.0),
        Some("0.05"),
        SEARCH,
        "The search ends when the lowest rate that missed is at most this share above the highest that met",
    ),
    key(
        "probe-s",
        Takes::Number(0.0, 1e5),
        Some("20"),
        SEARCH,
        "Each rate is tried for at least so many seconds, and for 10 / (1 - goodput share) requests",
    ),
];

/// Tables of further flags, by the program that gets them; and of variables of servers' environments.
pub const TABLES: [&str; 6] = ["traffic", "sim", "sglang", "sglang_router", "proxy", "env"];

const fn key(
    flag: &'static str,
    takes: Takes,
    default: Option<&'static str>,
    group: &'static str,
    help: &'static str,
) -> Key {
    let of = Of::Both;
    Key {
        flag,
        takes,
        default,
        of,
        group,
        help,
    }
}

const fn routing(
    flag: &'static str,
    takes: Takes,
    default: Option<&'static str>,
    group: &'static str,
    help: &'static str,
) -> Key {
    Key {
        of: Of::Routing,
        ..key(flag, takes, default, group, help)
    }
}

impl Kind {
    /// Its name, which is its subcommand.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Node => "node",
            Kind::Routing => "routing",
        }
    }

    /// The keys that its experiments have.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        let has = move |key: &&Key| key.of == Of::Both || self == Kind::Routing;
        KEYS.iter().filter(has)
    }

    /// One of them by its name.
    pub fn key(self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name() == name)
    }
}

impl Key {
    /// Its name in a file.
    pub fn name(&self) -> String {
        self.flag.replace('-', "_")
    }

    /// Its default.
    pub fn default(&self) -> Option<Value> {
        let table: toml::Table = toml::from_str(&format!("x = {}", self.default?)).ok()?;
        table.get("x").cloned()
    }
}

impl Takes {
    /// Whether a value is itself a list.
    pub fn is_list(self) -> bool {
        matches!(self, Takes::Texts)
    }

    /// Whether a flag's words are several values where commas stand.
    pub fn splits(self) -> bool {
        !matches!(
            self,
            Takes::Text | Takes::Texts | Takes::Schedule | Takes::Fault
        )
    }

    /// What is wrong with one value.
    ///
    /// # Errors
    /// Says what would be right.
    pub fn check(self, value: &Value) -> Result<(), String> {
        let is_right = match self {
            Takes::Text => value.is_str(),
            Takes::OneOf(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Takes::Whole(least, most) => value
                .as_integer()
                .is_some_and(|n| (least..=most).contains(&n)),
            Takes::Number(above, most) => number(value).is_some_and(|n| n > above && n <= most),
            Takes::Flag => value.is_bool(),
            Takes::Texts => value
                .as_array()
                .is_some_and(|all| all.iter().all(Value::is_str)),
            Takes::Schedule => value.is_table(),
            Takes::Fault => value.is_str() || value.is_table(),
        };
        if is_right { Ok(()) } else { Err(self.right()) }
    }

    fn right(self) -> String {
        match self {
            Takes::Text => "must be a text".to_owned(),
            Takes::Fault => "must be the name of a fault or a table of its fields".to_owned(),
            Takes::OneOf(words) => format!("must be one of {}", words.join(", ")),
            Takes::Whole(least, MOST) => format!("must be a whole number, {least} or more"),
            Takes::Whole(least, most) => format!("must be a whole number from {least} to {most}"),
            Takes::Number(above, most) => format!("must be a number above {above}, {most} at most"),
            Takes::Flag => "must be true or false".to_owned(),
            Takes::Texts => "must be a list of texts".to_owned(),
            Takes::Schedule => {
                "must be a table of seconds and servers, such as { 30 = [1, 2], 60 = [] }"
                    .to_owned()
            }
        }
    }
}

/// A number of either type.
pub fn number(value: &Value) -> Option<f64> {
    value
        .as_float()
        .or_else(|| value.as_integer().map(|n| n as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_that_its_key_takes() {
        for key in KEYS {
            let Some(written) = key.default else { continue };
            let value = key.default().expect(written);
            key.takes.check(&value).expect(key.flag);
        }
        let manual = [
            ("gpu_id", "0"),
            ("tp_size", "1"),
            ("max_running_requests", "256"),
            ("mem_fraction_static", "0.9"),
            ("num_gpus", "4"),
            ("routing_policy", "\"cache_aware\""),
            ("base_port", "30001"),
            ("collect_per_node_metrics", "true"),
        ];
        for (name, default) in manual {
            assert_eq!(
                Kind::Routing.key(name).unwrap().default,
                Some(default),
                "{name}"
            );
        }
        assert!(Kind::Node.key("num_gpus").is_none());
    }
}
