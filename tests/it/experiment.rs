//! Experiments: as they are typed; what is started, what is done to it, and what is left of it.

mod deployed;
mod faults;
mod grid;
mod kept;
mod launch;
mod pair;
mod plan;
mod resume;
mod scrape;
mod search;
mod servers;
mod started;
