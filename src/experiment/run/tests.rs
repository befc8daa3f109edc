//! Incomplete runs, folders that cannot be locked, and trials of a search.

use super::*;

#[test]
fn incomplete_runs_are_moved_aside_without_replacing_each_other() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(put_aside(folder.path(), "01-run").unwrap(), None);
    let aside = ["first", "second"].map(|text| {
        let dir = run_dir(folder.path(), "01-run");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("x"), text).unwrap();
        let aside = put_aside(folder.path(), "01-run").unwrap().unwrap();
        assert!(!dir.exists());
        aside
    });
    let texts = aside.map(|aside| std::fs::read_to_string(aside.join("x")).unwrap());
    assert_eq!(texts, ["first", "second"]);
}

#[test]
fn only_a_lock_that_is_held_is_told_as_another_process() {
    let unsupported = TryLockError::Error(std::io::ErrorKind::Unsupported.into());
    for (error, said) in [
        (TryLockError::WouldBlock, "a: another process is at work"),
        (unsupported, "a: .lock cannot be locked (unsupported); name"),
    ] {
        let told = not_locked(Path::new("a"), error).to_string();
        assert!(told.starts_with(said), "{told}");
    }
}

#[test]
fn a_trial_is_judged_by_the_requests_in_its_window_and_drawn_is_its_whole_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let summary = r#"{"scheduled": 20, "goodput_requests": 11, "schedule_rate": 8.6, "window": {"left_out_first": 6, "left_out_last": 3}}"#;
    std::fs::write(folder.path().join(SUMMARY), summary).unwrap();
    // The second turns of conversations have no time.
    let schedule = "index,scheduled_offset\n0,1.5\n1,\n2,2.5\n3,\n4,5.5\n5,\n";
    std::fs::write(folder.path().join(SCHEDULE), schedule).unwrap();
    let run = RunResult {
        dir: folder.path().to_owned(),
        file: RunFile::default(),
    };
    let objective = MaxRate {
        goodput: vec!["ttft:9".to_owned()],
        share: 0.95,
        ..MaxRate::default()
    };
    let evaluated = || evaluate(&run, 5.0, &objective);
    let (trial, told) = evaluated().unwrap();
    assert_eq!(
        (trial.result, trial.kept, trial.drawn),
        (Trial::Met, 1.0, Some(0.5))
    );
    assert_eq!(told, "met: 11 of 11 requests kept the limits (100.0 %)");
    // A rate of some of its lines would be another.
    std::fs::write(
        folder.path().join(SCHEDULE),
        format!("{schedule}6\n7,9.5\n"),
    )
    .unwrap();
    assert_eq!(evaluated().unwrap().0.drawn, None);
    // What is unknown of 100 requests is no miss, unless they are missed or met without it.
    let unmeasured = "ttft:9 cannot be measured: 20 of 100 requests have no such latency";
    for (good, unknown, expected) in [
        (0, 20, Ok(Trial::Missed)),
        (80, 20, Err(unmeasured)),
        (95, 5, Ok(Trial::Met)),
    ] {
        let summary = format!(
            r#"{{"scheduled": 100, "goodput_requests": {good}, "goodput_unknown": {unknown}}}"#
        );
        std::fs::write(folder.path().join(SUMMARY), summary).unwrap();
        match (evaluated(), expected) {
            (Ok((trial, _)), Ok(result)) => assert_eq!(trial.result, result),
            (Err(told), Err(said)) => assert!(told.starts_with(said), "{told}"),
            (found, _) => panic!("{good} {unknown}: {found:?}"),
        }
    }
}

#[test]
fn a_search_is_invalid_where_the_repeat_of_an_invalid_trial_is_too() {
    let folder = tempfile::tempdir().unwrap();
    let summary = r#"{"verdict": {"grade": "INVALID"}}"#;
    std::fs::write(folder.path().join(SUMMARY), summary).unwrap();
    let mut finished = Finished {
        runs: vec![RunResult {
            dir: folder.path().to_owned(),
            file: RunFile::default(),
        }],
        ..Finished::default()
    };
    assert!(finished.is_invalid(), "a run of no search");
    for (invalid, expected) in [(None, false), (Some(5.0), true)] {
        finished.file.max_rate = Some(MaxRate {
            invalid,
            ..MaxRate::default()
        });
        assert_eq!(finished.is_invalid(), expected);
    }
}
