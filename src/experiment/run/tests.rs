//! Incomplete runs.

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
