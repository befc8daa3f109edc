//! When a connection cannot be opened for want of files or ports: which limit it was, and what helps.

use std::error::Error as Cause;
use std::io;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use pingora::{Error, ErrorType};

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

/// Whether a failure to connect is our own (no socket, no port, no permission), not the upstream's. Pingora calls some of
/// these internal.
pub fn is_ours(error: &Error) -> bool {
    matches!(
        error.etype(),
        ErrorType::SocketError | ErrorType::BindError | ErrorType::InternalError
    )
}

/// Why a connection to `upstream` could not be opened, for the log.
pub fn words(error: &Error, upstream: &str) -> String {
    let what = format!("cannot open a connection to {upstream}");
    match of_system(error) {
        Some(cause) => format!("{what}: {cause}{}", remedy(cause)),
        None => format!("{what}: {error}"),
    }
}

/// The system's error text, for the record.
pub fn reason(error: &Error) -> String {
    let cause = of_system(error).map(ToString::to_string);
    cause.unwrap_or_else(|| "no socket".into())
}

/// The system's error within Pingora's.
fn of_system(error: &Error) -> Option<&io::Error> {
    let mut cause: &(dyn Cause + 'static) = error.root_cause();
    loop {
        match cause.downcast_ref() {
            Some(found) => return Some(found),
            None => cause = cause.source()?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pingora::OrErr;

    /// As Pingora makes them when a socket or a port is wanting.
    fn error(errno: Errno) -> Box<Error> {
        let system: Result<(), _> = Err(io::Error::from(errno));
        let inner = system.or_err(ErrorType::SocketError, "failed").unwrap_err();
        Error::because(ErrorType::InternalError, "Fail to connect", inner)
    }

    #[test]
    fn what_has_run_out_is_named_with_what_helps() {
        for (errno, piece) in [
            (Errno::EMFILE, "ulimit -n"),
            (Errno::ENFILE, "fs.file-max"),
            (Errno::EADDRNOTAVAIL, "ip_local_port_range"),
        ] {
            let words = words(&error(errno), "a:1");
            let start = "cannot open a connection to a:1: ";
            assert!(words.starts_with(start) && words.contains(piece), "{words}");
            assert!(reason(&error(errno)).contains("os error"));
        }
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let words = words(&error(Errno::EMFILE), "a:1");
        assert!(words.contains(&format!("may have {soft} files open")));
        assert_eq!(remedy(&io::Error::from(Errno::ECONNREFUSED)), "");
    }

    #[test]
    fn only_what_is_ours_is_told_apart() {
        assert!(is_ours(&error(Errno::EMFILE)));
        assert!(!is_ours(&Error::new_up(ErrorType::ConnectRefused)));
    }
}
