//! Through the real routers: traffic → front → router → hops → servers.

mod endpoints;
mod hosts;
mod queue;
mod storm;
