//! Programs that start and use servers, routers, proxies and traffic together: experiments, the demo, the probe.

pub mod api;
pub mod command;
pub mod demo;
pub mod faults;
pub mod launch;
pub mod node;
pub mod plan;
pub mod probe;
pub mod routing;
pub mod run;
pub mod scrape;
mod timed;
