use super::*;

#[test]
fn a_span_id_is_sixteen_hex_digits() {
    let id = SpanId::parse("00f067aa0ba902b7").unwrap();
    assert_eq!(id.to_string(), "00f067aa0ba902b7");
    let (zero, upper) = ("0".repeat(16), id.to_string().to_uppercase());
    for wrong in ["", &zero, &upper, "f067aa0ba902b7", "+0f067aa0ba902b7"] {
        assert_eq!(SpanId::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_failed_attempt_is_read_as_it_is_shown() {
    let id = SpanId::new(1).unwrap();
    let begun = Stamp::from_nanos(5);
    let open = Attempt::new(id, "w0".into(), "[::1]:30000".into(), begun);
    let mut rejected = open.clone();
    rejected.status = Some(503);
    rejected.outcome = Some(Outcome::Rejected);
    rejected.ended = Some(begun.plus_nanos(1_500_000));
    let mut unsent = rejected.clone();
    unsent.host.clear();
    for (attempt, text) in [
        (open, "[::1]:30000 open"),
        (rejected, "[::1]:30000 rejected 503 after 0.001500 s"),
        (unsent, "w0 rejected 503 after 0.001500 s"),
    ] {
        let failed = attempt.failed();
        assert_eq!(failed.to_string(), text);
        assert_eq!(parse_failed(text).collect::<Vec<_>>(), [failed]);
    }
}

#[test]
fn gaps_are_between_pieces_and_without_stalls() {
    let mut timing = BodyTiming::default();
    let at = |nanos: i64| Stamp::from_nanos(1_000 + nanos);
    assert!(timing.piece(at(0), 5));
    assert_eq!(timing.longest_gap_nanos, None);
    for (nanos, stall) in [(10, 5), (50, 35), (65, 35)] {
        assert!(!timing.piece(at(nanos), stall));
    }
    assert_eq!((timing.first, timing.last), (Some(at(0)), Some(at(65))));
    assert_eq!(timing.longest_gap_nanos, Some(15));
    let so_far = timing.so_far();
    assert_eq!((so_far.first, so_far.last), (Some(at(0)), None));
}

#[test]
fn the_root_span_sets_a_servers_role_unless_the_server_has_reported_one() {
    let mut roles = Roles::default();
    let span = |number| SpanId::new(number).unwrap();
    for number in 1..=2 * MAX_PENDING as u64 {
        roles.expect_role(span(number), "p0");
    }
    roles.resolve_role(1, ServerRole::Decode);
    assert_eq!(roles.of("p0"), None, "that is long ago");
    roles.resolve_role(2 * MAX_PENDING as u64, ServerRole::Prefill);
    assert_eq!(roles.of("p0"), Some(Some(ServerRole::Prefill)));
    roles.learn("w0", None);
    roles.expect_role(span(7), "w0");
    roles.resolve_role(7, ServerRole::Decode);
    assert_eq!(roles.of("w0"), Some(None));
    roles.forget("w0");
    assert_eq!(roles.of("w0"), None);
}
