//! A named thread that is joined when it is no longer needed.

use std::io;
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// A running thread. Dropping it waits for the thread's end, so whatever ends the thread must be dropped before.
#[derive(Debug)]
pub struct BackgroundThread(Mutex<Option<JoinHandle<()>>>);

impl BackgroundThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<BackgroundThread> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        Ok(BackgroundThread(Mutex::new(Some(builder.spawn(run)?))))
    }

    /// Waits for the thread's end; the second time there is nothing to wait for. Blocks.
    pub fn join(&self) {
        let Some(handle) = self.0.lock().take() else {
            return;
        };
        let thread = handle.thread().clone();
        if handle.join().is_err() {
            log::error!("the thread {} failed", thread.name().unwrap_or_default());
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.join();
    }
}
