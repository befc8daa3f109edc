//! Things that start proxies, servers and traffic, or ask them, together.

pub mod demo;
pub mod probe;
pub mod scrape;
