//! Tests of accepting when that fails.

use futures_util::FutureExt;

use super::*;

#[test]
fn a_shortage_of_files_alone_has_a_hint() {
    let hint = |errno: Errno| hint(&errno.into());
    assert!(hint(Errno::EMFILE).contains("ulimit -n"));
    assert_eq!(hint(Errno::EACCES), "");
}

#[tokio::test]
async fn accepting_goes_on_after_an_error_of_one_connection() {
    let waits = |errno: Errno| {
        let accept = accept_failed("", &errno.into()).now_or_never();
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
