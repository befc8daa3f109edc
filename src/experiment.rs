//! Runs made of traffic, proxies and servers.

pub mod probe;
