//! Things that start proxies, servers and traffic, or ask them, together.

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
