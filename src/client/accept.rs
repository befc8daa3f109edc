//! What becomes of an accept that fails, and of a connection that came about.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

use super::shortage;

/// After an accept that failed for want of something.
const PAUSE: Duration = Duration::from_millis(100);
/// Errors of the connection that was to be accepted (accept(2) passes those on): others wait behind it.
const OF_ONE_CONNECTION: &str = "ECONNABORTED ECONNRESET EINTR EPROTO EPERM ENOPROTOOPT EOPNOTSUPP ENETDOWN ENETUNREACH EHOSTDOWN EHOSTUNREACH ENONET";

/// An accept has failed: tells so, and waits where the next would fail too.
pub async fn failed(whose: &str, error: &io::Error) {
    let helps = shortage::remedy(error);
    log::warn!("{whose}cannot accept a connection: {error}{helps}");
    // Out of file descriptors, mostly: open connections go on.
    let errno = error.raw_os_error().map(Errno::from_raw);
    let name = format!("{:?}", errno.unwrap_or(Errno::UnknownErrno));
    if !OF_ONE_CONNECTION.split(' ').any(|one| one == name) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether a connection is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is.
    Served,
    /// It is, and a fault might have refused it: its first request is no chance of its own.
    Spared,
    /// It is reset by an injected fault.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn one_clients_leaving_holds_up_no_other() {
        let waits = |errno: Errno| failed("", &errno.into()).now_or_never().is_none();
        for errno in [
            Errno::ECONNABORTED,
            Errno::EINTR,
            Errno::EPROTO,
            Errno::ENETUNREACH,
        ] {
            assert!(!waits(errno), "{errno}");
        }
        for errno in [
            Errno::EMFILE,
            Errno::ENFILE,
            Errno::ENOBUFS,
            Errno::ENOMEM,
            Errno::EINVAL,
        ] {
            assert!(waits(errno), "{errno}");
        }
    }
}
