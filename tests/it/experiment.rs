//! Experiments: as they are typed; what is started, what is done to it, and what is left of it.

mod deployed;
mod grid;
mod kept;
mod launch;
mod pair;
mod plan;
mod scrape;
mod servers;
mod started;
