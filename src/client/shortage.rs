//! When a connection cannot be accepted or opened for want of files or ports: which limit it was, and what helps.

use std::error::Error as Cause;
use std::io;
use std::iter::successors;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use pingora::{Error, ErrorType};

/// After an accept that failed for want of something.
const PAUSE: Duration = Duration::from_millis(100);
/// Errors of the connection that was to be accepted (accept(2) passes those on): others wait behind it.
const OF_ONE_CONNECTION: &str = "ECONNABORTED ECONNRESET EINTR EPROTO EPERM ENOPROTOOPT EOPNOTSUPP ENETDOWN ENETUNREACH EHOSTDOWN EHOSTUNREACH ENONET";

/// An accept has failed: tells so, and waits where the next would fail too.
pub async fn accept_failed(whose: &str, error: &io::Error) {
    let helps = remedy(error);
    log::warn!("{whose}cannot accept a connection: {error}{helps}");
    // Out of file descriptors, mostly: open connections go on.
    let errno = error.raw_os_error().map(Errno::from_raw);
    let name = format!("{:?}", errno.unwrap_or(Errno::UnknownErrno));
    if !OF_ONE_CONNECTION.split(' ').any(|one| one == name) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// What helps against a system error, to follow its text; empty where unknown.
pub fn remedy(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => {
            let limit = getrlimit(Resource::RLIMIT_NOFILE);
            let limit = limit.map_or_else(|_| "no more".into(), |(soft, _)| soft.to_string());
            format!(
                "; this process may have {limit} files open, and a request takes two: raise the limit (ulimit -n, \
                 LimitNOFILE= of systemd, --ulimit nofile= of docker), or lower max_connections"
            )
        }
        Some(Errno::ENFILE) => "; all files of this machine are open: raise fs.file-max".into(),
        Some(Errno::EADDRNOTAVAIL) => {
            "; no local port is free for it: widen net.ipv4.ip_local_port_range".into()
        }
        _ => String::new(),
    }
}

/// Of a failure to connect that is our own (no socket, no port, no permission), not the upstream's: why, and what helps. Pingora
/// calls some of these internal.
pub fn of(error: &Error) -> Option<(String, String)> {
    use ErrorType::{BindError, InternalError, SocketError};
    if !matches!(error.etype(), SocketError | BindError | InternalError) {
        return None;
    }
    let root: &(dyn Cause + 'static) = error.root_cause();
    let mut causes = successors(Some(root), |cause| (**cause).source());
    let system = causes.find_map(|cause| cause.downcast_ref::<io::Error>());
    let told = system.map(|error| (error.to_string(), remedy(error)));
    Some(told.unwrap_or_else(|| ("no socket".into(), String::new())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use pingora::OrErr;

    /// As Pingora makes them when a socket or a port is wanting.
    fn error(errno: Errno) -> Box<Error> {
        let system: Result<(), _> = Err(io::Error::from(errno));
        let inner = system.or_err(ErrorType::SocketError, "failed").unwrap_err();
        Error::because(ErrorType::InternalError, "Fail to connect", inner)
    }

    #[test]
    fn what_has_run_out_is_named_with_what_helps() {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let may = format!("may have {soft} files open");
        for (errno, piece) in [
            (Errno::EMFILE, "ulimit -n"),
            (Errno::EMFILE, &may),
            (Errno::ENFILE, "fs.file-max"),
            (Errno::EADDRNOTAVAIL, "ip_local_port_range"),
        ] {
            let (why, helps) = of(&error(errno)).unwrap();
            assert!(why.contains("os error") && helps.contains(piece), "{helps}");
        }
        assert_eq!(of(&error(Errno::EACCES)).unwrap().1, "");
        assert_eq!(of(&Error::new_up(ErrorType::ConnectRefused)), None);
    }

    #[tokio::test]
    async fn one_clients_leaving_holds_up_no_other() {
        let waits = |errno: Errno| {
            let accept = accept_failed("", &errno.into()).now_or_never();
            accept.is_none()
        };
        use Errno::{ECONNABORTED, EINTR, EINVAL, EMFILE, ENETUNREACH, ENFILE, EPROTO};
        for errno in [ECONNABORTED, EINTR, EPROTO, ENETUNREACH] {
            assert!(!waits(errno), "{errno}");
        }
        for errno in [EMFILE, ENFILE, EINVAL] {
            assert!(waits(errno), "{errno}");
        }
    }
}
