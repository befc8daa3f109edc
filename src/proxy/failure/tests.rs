//! Tests of failures to connect.

use nix::errno::Errno;
use pingora::OrErr;

use super::*;

/// Returns an error as Pingora's for a missing socket or port.
fn error(errno: Errno) -> Box<Error> {
    let system: Result<(), _> = Err(io::Error::from(errno));
    let inner = system.or_err(ErrorType::SocketError, "failed").unwrap_err();
    Error::because(ErrorType::InternalError, "Fail to connect", inner)
}

#[test]
fn a_shortage_is_the_proxys_own_failure_and_a_refused_connection_is_none() {
    let of = |error: &Error| Failure::of_shortage(error, "127.0.0.1:1");
    for errno in [Errno::EMFILE, Errno::EACCES] {
        let Some(Failure::Internal(why)) = of(&error(errno)) else {
            panic!("{errno} is one");
        };
        assert!(why.contains(&io::Error::from(errno).to_string()), "{why}");
    }
    assert!(of(&Error::new_up(ErrorType::ConnectRefused)).is_none());
}
