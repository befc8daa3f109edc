//! What merges say and make is in `tests/data/folders.toml`.

use std::fs;

use super::*;

#[test]
fn a_failed_merge_leaves_no_files_that_block_the_next() {
    let root = tempfile::tempdir().unwrap();
    let shards = ["0/2", "1/2"].map(|shard| {
        let dir = root.path().join(&shard[..1]);
        fs::create_dir(&dir).unwrap();
        let summary = json!({ "started_at_ns": 0, "config": { "shard": shard } });
        fs::write(dir.join(SUMMARY), summary.to_string()).unwrap();
        fs::write(dir.join(ROWS), "req_id,arrival_time,outcome\na,1,ok\n").unwrap();
        dir
    });
    let out = root.path().join("out");
    // A folder with the name of a file.
    fs::create_dir_all(out.join("summary.json/x")).unwrap();
    merge(&shards, &out).unwrap_err();
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    fs::remove_dir_all(out.join("summary.json")).unwrap();
    merge(&shards, &out).unwrap();
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2);
}
