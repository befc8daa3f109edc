//! What is put aside.

use super::*;

#[test]
fn what_is_put_aside_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(put_aside(folder.path(), "01-run").unwrap(), None);
    let aside = ["first", "second"].map(|text| {
        let dir = of_run(folder.path(), "01-run");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("x"), text).unwrap();
        let aside = put_aside(folder.path(), "01-run").unwrap().unwrap();
        assert!(!dir.exists());
        aside
    });
    let texts = aside.map(|aside| std::fs::read_to_string(aside.join("x")).unwrap());
    assert_eq!(texts, ["first", "second"]);
}
