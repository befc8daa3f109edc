//! Tests of accepting when that fails.

use futures_util::FutureExt;

use super::*;

#[tokio::test]
async fn accepting_goes_on_after_an_error_of_one_connection() {
    let mut connections = JoinSet::new();
    let mut waits = |errno: Errno| {
        let accept = accept_failed(&mut connections, "", &errno.into()).now_or_never();
        accept.is_none()
    };
    use Errno::{ECONNABORTED, ECONNRESET, EINTR, EINVAL, EMFILE, ENFILE};
    for errno in [ECONNABORTED, ECONNRESET, EINTR] {
        assert!(!waits(errno), "{errno}");
    }
    for errno in [EMFILE, ENFILE, EINVAL] {
        assert!(waits(errno), "{errno}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_frees_files_and_ends_the_pause() {
    let mut connections = JoinSet::new();
    connections.spawn(std::future::ready(()));
    tokio::task::yield_now().await;
    let accept = accept_failed(&mut connections, "", &Errno::EMFILE.into()).now_or_never();
    assert!(accept.is_some());
}
