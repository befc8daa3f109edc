//! The kinds of findings: how much each matters, what it is called, what to do about it, and when it is found.

use super::{ENOUGH, Finding, Level, Seen, client, ends, failing, pair, servers, waiting};
use crate::request::columns::ColumnId;
use crate::request::timeline::Period;
use crate::units::duration;

/// What is found of a kind; it is given its level, title and advice, and may say more exactly what was found.
type Rule = fn(&Seen<'_>, Finding) -> Option<Finding>;

/// From this share of the time on a request mostly waited: a third.
const QUEUE_SHARE: f64 = 1.0 / 3.0;
/// What is less of the time is not worth a look at who caused it: a tenth.
const WAITING_SHARE: f64 = 0.1;
/// A router only passes on: a tenth of the time is more than that.
const ROUTER_SHARE: f64 = 0.1;
/// On the way back it only passes on, too: seconds, and the share of the TTFT.
const RETURN: f64 = 1e-3;
const RETURN_SHARE: f64 = 0.05;
/// Prefill is normally a small part: from here on it is what a request's time goes to.
const PREFILL_SHARE: f64 = 0.4;
/// Decoding is normally the largest part: from here on it is nearly all.
const DECODE_SHARE: f64 = 0.7;

/// Kind, level, title, advice (empty: there is nothing to do), rule. Those at the end are found where nothing before them is.
pub const KINDS: [(&str, Level, &str, &str, Rule); 21] = [
    (
        "verdict",
        Level::Problem,
        "INVALID: do not use these figures",
        "Give the generator a machine or cores of its own, or ask for a lower rate.",
        client::verdict,
    ),
    (
        "slots",
        Level::Limit,
        "The generator's own limit held requests back",
        "`--max-concurrency` was reached, so the load was less than the schedule asked: raise it, or read the latencies that \
         count from the schedule.",
        client::slots,
    ),
    (
        "server_failed",
        Level::Problem,
        "A server failed",
        "Is it up? The end of its log says why it ended. Where connections are refused, nothing listens at its address: it is down, \
         still loading its model, or listens elsewhere.",
        failing::server,
    ),
    (
        "not_served",
        Level::Limit,
        "A server was not used again",
        "What shares requests out still takes it for dead: sglang-router looks at its workers once a minute \
         (`health_check_interval_secs`, `cb_timeout_duration_secs`).",
        servers::not_served,
    ),
    (
        "failures",
        Level::Problem,
        "Requests failed",
        "Read the column `error` of these rows.",
        ends::failures,
    ),
    (
        "fault",
        Level::Limit,
        "A fault that was done on purpose made requests wait",
        "The table of faults shows what each fault cost.",
        failing::waited_for_fault,
    ),
    (
        "server_queue",
        Level::Limit,
        "Requests wait in the server queue",
        "Raise `max_running_requests` or add servers.",
        |of, found| {
            let took = of.stage(Period::PURE_QUEUE, QUEUE_SHARE)?;
            Some(waiting::causes(of, found, &took))
        },
    ),
    ("pair", Level::Limit, "", "", |of, found| {
        pair::narrow(of, found, QUEUE_SHARE)
    }),
    (
        "held_up",
        Level::Limit,
        "Few requests cause most of the waiting",
        "Give them servers of their own.",
        |of, found| {
            of.stage(Period::PURE_QUEUE, WAITING_SHARE)?;
            waiting::by_few(of.why, found)
        },
    ),
    (
        "queue_growth",
        Level::Limit,
        "The queue grew as long as the run lasted",
        "Lower the rate until the queue is steady; `--find-max-rate` searches the highest rate that meets an objective.",
        |of, found| Some(found.saying(servers::growth(of.run)?)),
    ),
    (
        "router_queue",
        Level::Limit,
        "Requests wait in the router queue",
        "Raise the router's limit of concurrent requests if it has one, give it more CPU, or run more than one: the servers \
         do not see these requests meanwhile.",
        |of, found| {
            let took = of.stage(Period::QUEUE_IN_ROUTER, ROUTER_SHARE)?;
            let what = format!("The router held a request {took} before it sent it on.");
            Some(waiting::behind_router(of, found.saying(what)))
        },
    ),
    (
        "router_return",
        Level::Limit,
        "The router holds first tokens back",
        "Try another router, or version of it. The time between tokens is measured behind the router: it is too short by what first \
         tokens are held back longer than last ones.",
        |of, found| {
            let latencies = &of.figures.all.latencies;
            let (ttft, held) = (
                latencies.ttft()?.mean,
                latencies.get(ColumnId::router_return)?,
            );
            let share = held.mean / ttft;
            let is_long = held.count >= ENOUGH && held.mean >= RETURN && share >= RETURN_SHARE;
            let [mean, p50, p99] = [held.mean, held.p50, held.p99].map(duration);
            is_long.then(|| {
                found.saying(format!(
                    "A first token was {mean} on its way back through the router on average (p50 {p50}, p99 {p99}): \
                     {:.0} % of the TTFT.",
                    share * 100.0
                ))
            })
        },
    ),
    (
        "prefill_bound",
        Level::Limit,
        "Prefill takes much of the time",
        "Send requests that begin alike to the same server (`cache_aware`), so that its prefix cache serves them; shorten \
         prompts; try another `chunked_prefill_size`; add servers or a higher `tp_size`.",
        |of, found| {
            let took = of.stage(Period::PREFILL, PREFILL_SHARE)?;
            Some(found.saying(format!("Reading the prompts took {took}.")))
        },
    ),
    (
        "imbalance",
        Level::Limit,
        "Servers had unequal shares",
        "Try a policy that looks at the servers' load (`shortest_queue`, `power_of_two`); with `cache_aware`, lower its \
         balance thresholds.",
        servers::imbalance,
    ),
    (
        "decode_bound",
        Level::Note,
        "Decoding takes most of the time",
        "That is how it should be where requests do not wait. To make it shorter: fewer requests at once on a server (lower \
         `max_running_requests`, more servers), a higher `tp_size`, `quantization`, or speculative decoding.",
        |of, found| {
            let took = of.stage(Period::DECODE, DECODE_SHARE)?;
            let each = of.figures.all.latencies.get(ColumnId::tpot);
            let each = each.map_or(String::new(), |each| {
                format!(" An output token took {} (median).", duration(each.p50))
            });
            Some(found.saying(format!("Making the answers took {took}.{each}")))
        },
    ),
    (
        "client_stall",
        Level::Limit,
        "Clients read slower than the servers write",
        "Look at the client's CPU and network; the servers are not slow here.",
        client::stall,
    ),
    (
        "retractions",
        Level::Limit,
        "Servers ran out of memory for tokens",
        "Raise `mem_fraction_static` or `schedule_conservativeness`, lower `max_running_requests`, or add servers.",
        ends::retractions,
    ),
    (
        "unseen",
        Level::Note,
        "Some stages were not measured",
        "",
        ends::unseen,
    ),
    ("fine", Level::Fine, "Nothing is wrong", "", |of, found| {
        let is_fine = of.is_whole() && of.episodes.is_empty() && of.found.is_empty();
        let shares = of.shares().filter(|_| is_fine)?;
        Some(found.saying(format!("{shares}.")))
    }),
    (
        "nothing_found",
        Level::Note,
        "No problem found in what was measured",
        "",
        |of, found| {
            // Of a run of which a part is missing, or was not seen: what is wrong there nobody knows.
            let shares = of.shares()?;
            let why = match of.is_whole() {
                true => "It had faults on purpose: their table says what became of requests.",
                false => "What is missing (see the notes) may hide something.",
            };
            Some(found.saying(format!("{shares}. {why}")))
        },
    ),
    (
        "too_few",
        Level::Note,
        "Too few requests to say anything",
        "Send more (`--num-prompts`).",
        ends::too_few,
    ),
];
