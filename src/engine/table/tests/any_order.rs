//! Rows and what is told of them, in any order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Ended(u8, u8, u8),
    Told(u8, bool),
    Due(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..12u8, 0..12u8, 0..50u8).prop_map(|(a, b, wait)| Step::Ended(a, b, wait)),
        (0..12u8, any::<bool>()).prop_map(|(rid, log)| Step::Told(rid, log)),
        (0..50u8).prop_map(Step::Due),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn every_request_comes_out_once_whatever_the_order(steps in steps()) {
        let mut table = Table::new(5);
        let (mut now, mut went_in) = (0, 0);
        let mut out: Vec<String> = Vec::new();
        let name = |joined: &Joined| joined.of.rows[0].request_id().to_owned();
        for step in steps {
            match step {
                Step::Ended(a, b, wait) => {
                    let (a, b) = (a.to_string(), b.to_string());
                    // An id of 11 is none, and ids may be there twice.
                    let rids = [a, b].map(|rid| Some(rid).filter(|rid| rid != "11"));
                    let rids: Vec<_> = rids.iter().map(Option::as_deref).collect();
                    let rows = rows(&went_in.to_string(), &rids);
                    went_in += 1;
                    let ended = Ended { rows, wanted: TRACED, at: at(now) };
                    match table.ended(ended, at(now + i64::from(wait))) {
                        Ok(joined) => out.extend(joined.iter().map(name)),
                        Err(rows) => out.push(rows[0].request_id().to_owned()),
                    }
                }
                Step::Told(rid, is_log) => {
                    let told = told(&rid.to_string());
                    let told = if is_log { line(told) } else { told };
                    out.extend(table.told(told, at(now)).1.iter().map(name));
                }
                Step::Due(later) => {
                    now += i64::from(later);
                    out.extend(table.due(at(now)).iter().map(name));
                    table.forget(at(now));
                    prop_assert!(table.spans.held() <= 5 * SPANS_EACH);
                }
            }
            prop_assert!(table.waiting() <= 5);
        }
        out.extend(table.due(at(now + 1000)).iter().map(name));
        prop_assert_eq!((table.waiting(), table.by_rid.len()), (0, 0));
        out.sort_by_key(|id| id.parse::<u32>().unwrap());
        let all: Vec<String> = (0..went_in).map(|id: u32| id.to_string()).collect();
        prop_assert_eq!(out, all);
    }
}
