//! The picture of one request: a bar per stage, and what was not measured, with its remedy.

use crate::clock::seconds;
use crate::request::stages::place;
use crate::request::{Breakdown, Part, Period, Row, StageSet, TOLERANCE_NANOS, Unseens};
use crate::units::duration;

/// The least width of a picture, columns.
const MIN_WIDTH: usize = 60;
/// The width of a part's label, columns.
const LABEL: usize = 22;
/// The width of its figures, columns.
const FIGURES: usize = 19;

/// Draws a request, at most `width` columns wide (at least 60): a line per stage, with a bar at its place in the request's time. A
/// shaded bar is several stages that were not measured separately.
pub fn render(row: &Row, width: usize) -> String {
    let Some(breakdown) = Breakdown::of(row) else {
        return "no timeline: too little of the request was measured\n".to_owned();
    };
    let room = width.max(MIN_WIDTH) - LABEL - FIGURES;
    let mut lines = Vec::new();
    let mut before = 0_i64;
    for part in &breakdown.parts {
        let error = clock_error(row, part.spent);
        lines.push(line(part, before, breakdown.total_nanos, room, error));
        before += part.nanos;
    }
    let total = duration(seconds(breakdown.total_nanos));
    lines.push(format!("{:<LABEL$}{total:>10}", "total"));
    lines.extend(tokens(row));
    if let Some(last_seen) = row.last_seen() {
        lines.push(format!("it failed; last seen {}", place(last_seen)));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// What was not measured of a request, each with its remedy, in sentences; none of a failed one, as no switch would help.
pub fn unseen(row: &Row) -> Vec<String> {
    let unseen = Unseens::of(row).iter().filter(|_| row.is_ok());
    unseen.map(|what| what.sentence()).collect()
}

/// How far other clocks are from the row's own, a line each.
pub fn clock_lines(row: &Row) -> Vec<String> {
    let clocks = row.timeline.other_clocks();
    let lines = clocks.map(|(clock, offset)| {
        let whose = clock.name();
        let error = duration(seconds(offset.error_nanos));
        let apart = duration(seconds(offset.nanos.saturating_abs()));
        let side = if offset.nanos < 0 {
            "behind"
        } else {
            "ahead of"
        };
        format!("the {whose}'s clock is {apart} {side} ours, within {error}")
    });
    lines.collect()
}

fn line(part: &Part, before: i64, total: i64, room: usize, error: i64) -> String {
    let share = |nanos: i64| match total {
        1.. => (nanos as f64 / total as f64).clamp(0.0, 1.0),
        _ => 0.0,
    };
    let start = (share(before) * room as f64).round() as usize;
    let end = (share(before.saturating_add(part.nanos)) * room as f64).round() as usize;
    // Every part that took time has a bar, even if that is shorter than a column.
    let start = start.min(room - 1);
    let length = end.saturating_sub(start).max(usize::from(part.nanos > 0));
    // Timestamps of one clock have a tolerance, too.
    if (-error.max(TOLERANCE_NANOS)..0).contains(&part.nanos) {
        return format!("{}within the clock error", labelled(part.spent));
    }
    let bar = match part.nanos {
        ..0 => "!".to_owned(),
        // It may all be the clocks' error.
        nanos if error > 0 && nanos <= error => format!("± {}", duration(seconds(error))),
        _ => " ".repeat(start) + &mark(part.spent).repeat(length),
    };
    format!(
        "{}{:>10}{:>5.0} %  {bar}",
        labelled(part.spent),
        duration(seconds(part.nanos)),
        share(part.nanos) * 100.0,
    )
}

/// The label at the start of a line of figures. One that is too long has a line of its own.
pub fn labelled(set: StageSet) -> String {
    match set.label() {
        label if label.chars().count() >= LABEL => format!("{label}\n{:LABEL$}", ""),
        label => format!("{label:<LABEL$}"),
    }
}

/// The clocks' error of a part's time, nanoseconds.
pub fn clock_error(row: &Row, set: StageSet) -> i64 {
    let periods = || set.stages().map(|stage| stage.period);
    let ends = periods().next().zip(periods().last());
    ends.map_or(0, |(first, last)| {
        let (from, to) = (first.from, last.to);
        let measured = row.timeline.measured(Period { from, to });
        measured.map_or(0, |(_, error)| error)
    })
}

/// The character of a part's bar: shaded if it is several stages, or none.
pub fn mark(set: StageSet) -> &'static str {
    match set {
        StageSet::PROMPT | StageSet::CLIENT_STALL => "▒",
        _ if set.stages().count() > 1 => "░",
        _ => "█",
    }
}

fn tokens(row: &Row) -> Option<String> {
    let count = row.actual_output_tokens?;
    let gaps = [("one each", row.tpot), ("longest gap", row.itl_max)].into_iter();
    let gaps =
        gaps.filter_map(|(name, nanos)| Some(format!(", {name} {}", duration(seconds(nanos?)))));
    Some(format!(
        "{:<LABEL$}{count:>10}{}",
        "tokens",
        gaps.collect::<String>()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Offset;
    use crate::report::load::tests::*;
    use crate::request::{ClockOf, ENGINE, Relation};

    #[test]
    fn a_complete_request_has_a_line_per_stage() {
        let picture = render(&Sample::whole().row(), 91);
        let expected = "\
client lag                1.0 ms    0 %  █
to proxy                  1.0 ms    0 %  █
router queue              3.0 ms    1 %  █
network                   5.0 ms    1 %   █
tokenize                 10.0 ms    2 %   █
server queue             80.0 ms   16 %    ████████
prefill                   0.10 s   20 %            ██████████
return                   10.0 ms    2 %                      █
decode                    0.29 s   58 %                       █████████████████████████████
total                     0.50 s
tokens                        29, one each 10.0 ms, longest gap 20.0 ms
";
        assert_eq!(picture, expected);
        assert!(unseen(&Sample::whole().row()).is_empty());
    }

    #[test]
    fn stages_not_measured_separately_are_one_and_unknown_ones_are_left_out() {
        let cut = Sample::whole().without(&[Moment::ServerCreated, Moment::ServerFinish]);
        let cut = cut.ended(Outcome::UpstreamDied, "");
        // The jitter of timestamps of one moment is no time.
        let jitter = |row: &mut Row| {
            let created = row.timeline.raw(Moment::ServerCreated).unwrap();
            let entered = created.plus_nanos(-62);
            row.timeline.set(Moment::QueueStart, entered);
        };
        let stalled = |row: &mut Row| row.client_stall_until_finish = Some(ms(100));
        let pictures = [
            Sample::whole().without(&ENGINE),
            Sample::whole().with(stalled),
            cut,
            Sample::whole().with(jitter),
        ];
        let pictures = pictures.map(|sample| render(&sample.row(), 91));
        for (of, expected) in [
            (0, "\nunseen in the server      0.20 s   41 %   ░░░░"),
            (1, "client stall              0.10 s   20 %  "),
            (1, "▒"),
            (2, "network+tokenize         15.0 ms    3 %  "),
            (2, "it failed; last seen in decoding\n"),
            (3, "\ntokenize              within the clock error\n"),
        ] {
            assert_says(&pictures[of], expected);
        }
        assert!(!pictures[3].contains('!'), "{}", pictures[3]);
    }

    #[test]
    fn nonsense_does_not_panic() {
        let backwards = Sample::whole().at(Moment::Finish, -5_000).row();
        let picture = render(&backwards, 0);
        assert!(picture.contains('!'), "{picture}");
        let instant = Sample::whole().at(Moment::Finish, 0).row();
        assert!(render(&instant, 1000).contains("total"));
        let endless = Sample::whole().without(&[Moment::Finish]).row();
        assert!(render(&endless, 80).starts_with("no timeline"));
    }

    #[test]
    fn a_duration_within_the_clocks_error_is_not_wrong() {
        let apart = |nanos, error_nanos| Relation::Apart(Offset { nanos, error_nanos });
        let arrived = |at, error| {
            let sample = Sample::whole().at(Moment::Arrival, at).with(|r| {
                let timeline = &mut r.timeline;
                timeline.relate(ClockOf::Front, apart(0, error));
                // The hop is the same process: its error is the front's, which counts once.
                timeline.relate(ClockOf::Hop, apart(0, error));
                timeline.hop_shares_front();
            });
            sample.row()
        };
        let expected = "to proxy                  2.0 ms    0 %  ± 2.0 ms\n";
        assert_says(&render(&arrived(3, ms(2)), 91), expected);
        // The front's clock puts the arrival 2 ms before the send.
        let known = arrived(-1, ms(1));
        assert_says(&render(&known, 91), "!");
        // That stage has no column, but durations from that arrival are longer than the request.
        assert_says(&known.inconsistency.unwrap(), "total_latency>elapsed");
        let unsure = arrived(-1, ms(2));
        let picture = render(&unsure, 91);
        assert!(!picture.contains('!'), "{picture}");
        assert_says(&picture, "to proxy              within the clock error\n");
        let expected = [
            "the proxy's clock is 0 µs ahead of ours, within 2.0 ms",
            "the server's clock is 7.00 s ahead of ours, within 1 µs",
        ];
        assert_eq!(clock_lines(&unsure), expected);
        // A clock that cannot be compared is left out.
        assert!(clock_lines(&Sample::whole().engine_unknown().row()).is_empty());
    }
}
