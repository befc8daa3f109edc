//! Experiments: what is started, what is done to it, and what is left of it.

mod faults;
mod launch;
