//! Programs that start and use servers, routers, proxies and traffic together: experiments, the demo, the probe.

pub mod api;
pub mod command;
pub mod faults;
pub mod launch;
pub mod plan;
pub mod probe;
pub mod run;
pub mod scrape;
mod timed;

// The Rust API has a path of each command.
pub use api as node;
pub use api as routing;
