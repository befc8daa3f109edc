//! When requests were to be sent, and when they were.

use serde_json::{Value, json};

use crate::report::reader::Run;
use crate::table::Table;

use super::curves::{short, slot_of, sorted};

/// Stretches of a run in which arrivals are counted, at most.
const SLOTS: f64 = 60.0;
/// The gaps between arrivals, and arrivals counted over time: as the schedule asked, and as sent (a
/// proxy's rows: as they arrived). Null with fewer than two.
pub fn arrivals(table: &Table) -> Value {
    let times = |column| sorted(table.numbers(column));
    let asked = times("scheduled_time");
    let sent = times("sent_time");
    let sent = if sent.is_empty() {
        times("arrival_time")
    } else {
        sent
    };
    let Some(last) = sent.last().copied().filter(|_| sent.len() > 1) else {
        return Value::Null;
    };
    let length = slot_of(last, SLOTS);
    // The last stretch is cut short by the end of the run.
    let slots = ((last / length).floor() as usize).max(1);
    let counts = |times: &[f64]| {
        let mut counts = vec![0_u64; slots];
        for at in times {
            if let Some(count) = counts.get_mut((at / length).max(0.0) as usize) {
                *count += 1;
            }
        }
        counts
    };
    json!({
        "sent": gaps(&sent),
        "asked": (asked.len() > 1).then(|| gaps(&asked)),
        "slot": short(length),
        "counts": { "sent": counts(&sent), "asked": (asked.len() > 1).then(|| counts(&asked)) },
    })
}

/// Requests a second of a run whose gaps were to be those of a Poisson process. Null of others: of a shard, which sends every
/// n-th request of such a process, of conversations, whose later turns come when their answers have, and of shards of which some
/// are missing.
pub fn poisson_rate(run: &Run) -> Option<f64> {
    let number = |pointer: &str| run.told(pointer).and_then(Value::as_f64);
    let has = |pointer: &str| run.told(pointer).is_some();
    let is_whole = !has("/config/shard") && number("/config/turns").unwrap_or(1.0) <= 1.0;
    let burstiness = number("/config/burstiness").unwrap_or(1.0);
    let is_steady = burstiness == 1.0 && !has("/config/rate_curve");
    let is_poisson = run.told("/config/arrival")? == "poisson";
    let (asked, offered) = (number("/config/request_rate")?, number("/offered_rate")?);
    let is_all = (offered - asked).abs() < 1e-6 * asked;
    (is_poisson && is_whole && is_steady && is_all).then_some(offered)
}

/// The gaps of ascending times: their mean, and standard deviation over the mean (Poisson: 1).
fn gaps(times: &[f64]) -> Value {
    let pairs = || times.iter().zip(times.iter().skip(1));
    let gaps = || pairs().map(|(before, after)| after - before);
    let count = gaps().count() as f64;
    let mean = gaps().sum::<f64>() / count;
    let spread = gaps().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
    json!({ "mean": short(mean), "variation": short(spread.sqrt() / mean) })
}
