//! Through the real routers: traffic → front → router → hops → servers.

mod endpoints;
mod engine_traces;
mod hosts;
mod queue;
mod storm;
