//! Signals that would end the process though nobody means that by them.

use std::io;
use std::sync::Arc;

use nix::sys::signal::Signal;

/// From now on SIGXFSZ does nothing (a file has come to the limit of `ulimit -f`: writing it fails then, and whoever writes it says
/// so), nor SIGUSR1, which often means "write your figures" or "open your log again"; nor, but to a proxy, SIGUSR2.
///
/// # Errors
/// What the system answers.
pub(super) fn ignore(is_proxy: bool) -> io::Result<()> {
    let usr2 = (!is_proxy).then_some(Signal::SIGUSR2);
    let ignored = [Signal::SIGXFSZ, Signal::SIGUSR1].into_iter().chain(usr2);
    for signal in ignored {
        signal_hook::flag::register(signal as i32, Arc::default())?;
    }
    Ok(())
}
