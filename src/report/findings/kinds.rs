//! The kinds of findings: how much each matters, what it is called, what to do about it.

use super::{Finding, Level};

/// Kind, level, title, advice (empty: there is nothing to do). A finding may say more exactly what was found.
const KINDS: [(&str, Level, &str, &str); 18] = [
    (
        "verdict",
        Level::Problem,
        "INVALID: do not use these figures",
        "Give the generator a machine or cores of its own, or ask for a lower rate.",
    ),
    (
        "slots",
        Level::Limit,
        "The generator's own limit held requests back",
        "`--max-concurrency` was reached, so the load was less than the schedule asked: raise it, or read the latencies that \
         count from the schedule.",
    ),
    (
        "client_bound",
        Level::Problem,
        "The generator could not keep its schedule",
        "Give the generator a machine or cores of its own, or ask for a lower rate.",
    ),
    (
        "failures",
        Level::Problem,
        "Requests failed",
        "Read the column `error` of these rows.",
    ),
    (
        "server_queue",
        Level::Limit,
        "Requests wait in the servers' queues",
        "Raise `max_running_requests` or add servers.",
    ),
    (
        "queue_growth",
        Level::Limit,
        "The queue grew as long as the run lasted",
        "Lower the rate until the queue is steady, or add servers; `--find-max-rate` searches the highest rate that meets an \
         objective.",
    ),
    (
        "router_queue",
        Level::Limit,
        "Requests wait in the router",
        "Raise the router's limit of concurrent requests if it has one, give it more CPU, or run more than one: the servers \
         do not see these requests meanwhile.",
    ),
    (
        "prefill_bound",
        Level::Limit,
        "Prefill takes most of the time",
        "Send requests that begin alike to the same server (`cache_aware`), so that its prefix cache serves them; shorten \
         prompts; try another `chunked_prefill_size`; add servers or a higher `tp_size`.",
    ),
    (
        "imbalance",
        Level::Limit,
        "Servers had unequal shares",
        "Try a policy that looks at the servers' load (`shortest_queue`, `power_of_two`); with `cache_aware`, lower its \
         balance thresholds.",
    ),
    (
        "not_served",
        Level::Limit,
        "A server was not used again",
        "What shares requests out still takes it for dead: sglang-router looks at its workers once a minute \
         (`health_check_interval_secs`, `cb_timeout_duration_secs`).",
    ),
    (
        "decode_bound",
        Level::Note,
        "Decoding takes most of the time",
        "That is how it should be where requests do not wait. To make it shorter: fewer requests at once on a server (lower \
         `max_running_requests`, more servers), a higher `tp_size`, `quantization`, or speculative decoding.",
    ),
    (
        "client_stall",
        Level::Limit,
        "Clients read slower than the servers write",
        "Look at the client's CPU and network; the servers are not slow here.",
    ),
    (
        "retractions",
        Level::Limit,
        "Servers ran out of memory for tokens",
        "Raise `mem_fraction_static` or `schedule_conservativeness`, lower `max_running_requests`, or add servers.",
    ),
    ("unseen", Level::Note, "Not every moment could be seen", ""),
    (
        "inconsistent",
        Level::Note,
        "Some moments contradict each other",
        "A clock was set during the run, or a server tells its times wrongly: do not trust stages of these rows.",
    ),
    ("fine", Level::Fine, "Nothing is wrong", ""),
    (
        "nothing_found",
        Level::Note,
        "Nothing found in what could be seen",
        "",
    ),
    (
        "too_few",
        Level::Note,
        "Too few requests to say anything",
        "",
    ),
];

impl Finding {
    /// One of this kind; `what`: the figures that say so.
    pub(super) fn new(kind: &'static str, what: String) -> Finding {
        let known = KINDS.iter().find(|(known, ..)| *known == kind);
        let (_, level, title, advice) = known.unwrap_or(&("", Level::Note, "", ""));
        Finding {
            kind,
            level: *level,
            title: (*title).to_owned(),
            what,
            advice: (*advice).to_owned(),
        }
    }
}
