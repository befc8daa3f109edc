//! Things that start proxies, servers and traffic together.

pub mod demo;
