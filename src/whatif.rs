//! Predicts what a change of servers would do to a measured load. The simulator's engine is fitted to rows of requests; the load is
//! then replayed through it in simulated time. The error is measured by replaying the rows that the engine was fitted to.

pub mod command;
pub mod figures;
pub mod fit;
pub mod learn;
pub mod load;
pub mod replay;
pub mod settings;
