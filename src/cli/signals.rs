//! Signals that would end the process though nobody means that by them.

use std::io;
use std::thread;

use signal_hook::consts::{SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// A file has come to the limit on file sizes (`ulimit -f`). Writing it fails then, and whoever writes it says so.
const SIGXFSZ: i32 = nix::sys::signal::Signal::SIGXFSZ as i32;

/// From now on SIGXFSZ does nothing, nor SIGUSR1, which often means "write your figures" or "open your log again"; nor, but to a
/// proxy, SIGUSR2. What was sent for nothing is said.
///
/// # Errors
/// The system gives no thread, or none of what signals need.
pub(super) fn ignore(is_proxy: bool) -> io::Result<()> {
    let mut signals = Signals::new([SIGXFSZ, SIGUSR1])?;
    if !is_proxy {
        signals.add_signal(SIGUSR2)?;
    }
    let say = move || {
        for signal in signals.forever().filter(|signal| *signal != SIGXFSZ) {
            let name = if signal == SIGUSR1 {
                "SIGUSR1"
            } else {
                "SIGUSR2"
            };
            let what = match is_proxy {
                true => "SIGHUP takes on the config, SIGUSR2 restarts, SIGTERM ends",
                false => "it means nothing here; SIGTERM ends this process",
            };
            log::warn!("{name} ignored: {what}");
        }
    };
    thread::Builder::new().name("signals".into()).spawn(say)?;
    Ok(())
}
