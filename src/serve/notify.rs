//! Notifications to systemd: sd_notify(3), one datagram a state.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service ends.
pub const STOPPING: &str = "STOPPING=1";

/// Notifies the service manager, where there is one, of a state as sd_notify(3) writes it.
pub fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(socket.as_bytes(), state.as_bytes()) {
        log::warn!("cannot notify the service manager: {error}");
    }
}

/// The service's main process from now on, also where it took over from another.
pub fn main_process(pid: u32) -> String {
    format!("MAINPID={pid}")
}

fn send(socket: &[u8], text: &[u8]) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(text, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_to_a_path_and_to_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify.sock");
        let name = format!("queuescope-notify-{}", std::process::id());
        let there = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, given) in [
            (
                UnixDatagram::bind(&path).unwrap(),
                path.to_str().unwrap().to_owned(),
            ),
            (UnixDatagram::bind_addr(&there).unwrap(), format!("@{name}")),
        ] {
            send(given.as_bytes(), b"READY=1").unwrap();
            let mut buffer = [0; 64];
            let read = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..read], b"READY=1");
        }
        assert!(send(b"/nowhere/at/all", b"READY=1").is_err());
    }
}
