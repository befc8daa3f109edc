//! Incomplete runs, and folders that cannot be locked.

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
