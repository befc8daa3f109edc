//! A named thread that is joined when it is no longer needed.

use std::io;
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// A running thread. Dropping it waits for the thread's end, so whatever ends the thread must be dropped before.
#[derive(Debug)]
pub struct BackgroundThread {
    handle: Mutex<Option<JoinHandle<()>>>,
    name: &'static str,
}

impl BackgroundThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub fn spawn(
        name: &'static str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<BackgroundThread> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        Ok(BackgroundThread {
            handle: Mutex::new(Some(builder.spawn(run)?)),
            name,
        })
    }

    /// Waits for the thread's end; the second time there is nothing to wait for. Blocks.
    pub fn join(&self) {
        let handle = self.handle.lock().take();
        if handle.is_some_and(|handle| handle.join().is_err()) {
            log::error!("the thread {} failed", self.name);
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.join();
    }
}
