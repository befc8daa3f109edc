//! Rows and reports, in any order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Ended(u8, u8, u8),
    Report(u8, bool),
    Due(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..12u8, 0..12u8, 0..50u8).prop_map(|(a, b, wait)| Step::Ended(a, b, wait)),
        (0..12u8, any::<bool>()).prop_map(|(rid, log)| Step::Report(rid, log)),
        (0..50u8).prop_map(Step::Due),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn every_request_is_released_once_in_any_order(steps in steps()) {
        let mut table = JoinTable::new(5);
        let (mut now, mut went_in) = (0, 0);
        let mut out: Vec<String> = Vec::new();
        let name = |joined: &Joined| joined.request.rows[0].request_id().to_owned();
        for step in steps {
            match step {
                Step::Ended(a, b, wait) => {
                    let (a, b) = (a.to_string(), b.to_string());
                    // 11 stands for no id, and ids may repeat.
                    let rids = [a, b].map(|rid| Some(rid).filter(|rid| rid != "11"));
                    let rids: Vec<_> = rids.iter().map(Option::as_deref).collect();
                    let rows = rows(&went_in.to_string(), &rids);
                    went_in += 1;
                    let deadline = at(now + i64::from(wait));
                    let ended = EndedRequest { rows, expected_source: TRACED, at: at(now), deadline };
                    let refused = table.add_request(ended).err().map(Joined::without);
                    out.extend(refused.iter().map(name));
                }
                Step::Report(rid, is_log) => {
                    let report = report(&rid.to_string());
                    let report = if is_log { log_line(report) } else { report };
                    out.extend(table.receive(report, at(now)).1.iter().map(name));
                }
                Step::Due(later) => {
                    now += i64::from(later);
                    out.extend(table.take_ready(at(now)).iter().map(name));
                    drop(table.forget(at(now)));
                    prop_assert!(table.store.is_within(5 * SPANS_PER_REQUEST));
                }
            }
            prop_assert!(table.waiting() <= 5);
        }
        out.extend(table.take_ready(at(now + 1000)).iter().map(name));
        prop_assert_eq!(table.waiting(), 0);
        out.sort_by_key(|id| id.parse::<u32>().unwrap());
        let all: Vec<String> = (0..went_in).map(|id: u32| id.to_string()).collect();
        prop_assert_eq!(out, all);
    }
}
