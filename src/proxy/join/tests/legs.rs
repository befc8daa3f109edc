//! Tests of the join tables with the legs of a pair.

use super::*;

/// Without a front's row, the decode leg's row has what the prefill leg reported.
#[test]
fn legs_without_a_front_are_one_row() {
    for has_front in [true, false] {
        let tables = tables(has_front);
        let _prefill = tables.leg(1, 7, None);
        let decode = tables.leg(2, 7, Some(ServerRole::Decode));
        let rows = vec![Sample::whole().open_row()];
        assert!(tables.joins.end(&decode, Some(rows), at(2)).is_none());
        assert!(tables.joins.sweep(at(7)).is_empty());
        if !has_front {
            // The successor has none of these attempts.
            tables.joins.shared_with_successor();
        }
        let rows = tables.joins.sweep(at(8)).pop().unwrap();
        assert_eq!(rows[0].prefill_host.as_deref(), Some("server:1"));
    }
}

/// A prefill leg that was refused at once waits for the decode leg, and gets no row beside that one's.
#[test]
fn a_refused_prefill_leg_is_no_row_of_its_own_though_it_was_first() {
    for (has_front, comes) in [(false, true), (false, false), (true, true), (true, false)] {
        let tables = tables(has_front);
        let joins = &tables.joins;
        let arrive = |number, role| {
            let leg = tables.leg(number, 7, Some(role));
            leg.data.lock().worker = role.name().to_owned();
            leg
        };
        let row = || Some(vec![Sample::whole().open_row()]);
        let refused = arrive(1, ServerRole::Prefill);
        end(&refused, Some(502), Outcome::ProxyError);
        assert!(joins.end(&refused, row(), at(2)).is_none());
        if comes {
            let decode = arrive(2, ServerRole::Decode);
            end(&decode, None, Outcome::ClientAbort);
            assert!(joins.end(&decode, row(), at(3)).is_none());
        }
        let rows = joins.sweep(at(100)).len();
        assert_eq!(rows, 1, "{has_front} {comes}");
    }
}
