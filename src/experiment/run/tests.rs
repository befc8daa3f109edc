//! What is put aside.

use super::*;

#[test]
fn what_is_put_aside_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(put_aside(folder.path(), "01-run").unwrap(), None);
    let mut seen = Vec::new();
    for text in ["first", "second"] {
        let dir = of_run(folder.path(), "01-run");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("x"), text).unwrap();
        seen.push(put_aside(folder.path(), "01-run").unwrap().unwrap());
        assert!(!dir.exists());
    }
    assert_eq!(std::fs::read_to_string(seen[0].join("x")).unwrap(), "first");
    assert_eq!(
        std::fs::read_to_string(seen[1].join("x")).unwrap(),
        "second"
    );
}
