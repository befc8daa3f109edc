//! Connections that cannot be accepted or opened, as the process has no more files or ports: the limit, and a hint.

use std::error::Error as Cause;
use std::io;
use std::iter::successors;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use pingora::{Error, ErrorType};

/// The pause after an accept that failed for a limit.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Logs that an accept failed, and waits if the next one would fail too. `listener` is a prefix.
pub async fn accept_failed(listener: &str, error: &io::Error) {
    let hint = hint(error);
    log::warn!("{listener}cannot accept a connection: {error}{hint}");
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    // Those are of one connection. Others are mostly of file descriptors: connections that end free some.
    if !matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    ) {
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Returns a hint against a system error, to be appended to its text; empty if there is none.
pub fn hint(error: &io::Error) -> String {
    if error.raw_os_error() != Some(Errno::EMFILE as i32) {
        return String::new();
    }
    let limit = getrlimit(Resource::RLIMIT_NOFILE);
    let limit = limit.map_or_else(|_| "no more".into(), |(soft, _)| soft.to_string());
    format!(
        "; this process may have {limit} files open, and a request takes two: raise the limit (ulimit -n, \
         LimitNOFILE= of systemd, --ulimit nofile= of docker), or lower max_connections"
    )
}

/// Returns reason and hint of a failure to connect that is this machine's (no socket, no port, no permission), not the upstream's.
/// Pingora calls some of them internal.
pub fn of_connect(error: &Error) -> Option<(String, String)> {
    use ErrorType::{BindError, InternalError, SocketError};
    if !matches!(error.etype(), SocketError | BindError | InternalError) {
        return None;
    }
    let root: &(dyn Cause + 'static) = error.root_cause();
    let mut causes = successors(Some(root), |cause| (**cause).source());
    let system = causes.find_map(|cause| cause.downcast_ref::<io::Error>());
    let found = system.map(|error| (error.to_string(), hint(error)));
    Some(found.unwrap_or_else(|| ("no socket".into(), String::new())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use pingora::OrErr;

    /// Returns an error as Pingora's for a missing socket or port.
    fn error(errno: Errno) -> Box<Error> {
        let system: Result<(), _> = Err(io::Error::from(errno));
        let inner = system.or_err(ErrorType::SocketError, "failed").unwrap_err();
        Error::because(ErrorType::InternalError, "Fail to connect", inner)
    }

    #[test]
    fn a_shortage_of_files_alone_has_a_hint_and_a_refused_connection_is_none() {
        let of = |errno| of_connect(&error(errno)).unwrap();
        assert!(of(Errno::EMFILE).1.contains("ulimit -n"));
        assert_eq!(of(Errno::EACCES).1, "");
        assert_eq!(of_connect(&Error::new_up(ErrorType::ConnectRefused)), None);
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
}
