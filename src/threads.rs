//! Work that several threads share, while their caller waits.

use std::panic::resume_unwind;
use std::thread::{ScopedJoinHandle, available_parallelism};

/// The fewest elements that are worth a thread.
const MIN_PART: usize = 1000;

/// What `of` makes of the parts of `all`: as many as there are processors, but none of fewer than [`MIN_PART`] but the last.
pub fn in_parallel<T: Sync, R: Send>(all: &[T], of: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    let threads = available_parallelism().map_or(1, usize::from);
    let parts = all.chunks(all.len().div_ceil(threads).max(MIN_PART));
    let of = &of;
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || of(part))).collect();
        threads.into_iter().map(joined).collect()
    })
}

/// The result of a thread, which panics as the thread did.
pub fn joined<R>(thread: ScopedJoinHandle<'_, R>) -> R {
    let result = thread.join();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}
