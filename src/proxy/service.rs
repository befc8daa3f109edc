//! One listener's part of the proxy: what its connections and requests share.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::connectors::ConnectorOptions;
use pingora::connectors::http::v1::Connector;
use pingora::time::fast_timeout::set_fast_timeout_to_tokio_threshold;

use crate::client::listener::Listener;
use crate::client::tls::Tls;
use crate::fault::registry::Faults;
use crate::upstream::Upstreams;
use crate::upstream::idle::Idle;

use super::shared::{Role, Shared};

/// What a listener serves by.
pub struct Service {
    /// What all listeners share.
    pub shared: Arc<Shared>,
    /// Whose requests come.
    pub role: Role,
    /// The socket side.
    pub listener: Listener,
    /// Where requests go. A reload replaces them.
    pub upstreams: ArcSwap<Upstreams>,
    /// Connects to upstreams.
    pub connector: Connector,
    /// What stays connected to them.
    pub idle: Idle,
}

impl Service {
    /// A listener that sends to the present `upstreams` and keeps so many idle connections to them.
    pub fn new(
        shared: Arc<Shared>,
        role: Role,
        listener: Listener,
        upstreams: Arc<Upstreams>,
        pool: usize,
    ) -> Service {
        // Its own pool stays empty.
        let mut options = ConnectorOptions::new(1);
        // Time limits of a second and more by the runtime: Pingora's own timers stay until their time, each idle connection's too,
        // and a thread looks at them 100 times a second.
        set_fast_timeout_to_tokio_threshold(Some(Duration::ZERO));
        // Each peer brings its own roots; without a file Pingora would read the system's.
        options.ca_file = Some("/dev/null".into());
        Service {
            shared,
            role,
            listener,
            upstreams: upstreams.into(),
            connector: Connector::new(Some(options)),
            idle: Idle::new(pool),
        }
    }

    /// The faults that can be injected, and the worker's name.
    pub fn faults(&self) -> Option<(&Faults, &str)> {
        match &self.role {
            Role::Hop(worker) => Some((self.shared.faults.as_ref()?, worker)),
            Role::Front => None,
        }
    }

    /// The certificate, where clients speak TLS.
    pub fn tls(&self) -> Option<&Tls> {
        let tls = self.shared.tls.as_ref();
        tls.filter(|_| self.role == Role::Front)
    }
}
