//! One listener's part of the proxy: what its connections and requests share.

use std::sync::Arc;

use arc_swap::ArcSwap;
use pingora::connectors::ConnectorOptions;
use pingora::connectors::http::v1::Connector;

use crate::client::listener::Listener;
use crate::client::tls::Tls;
use crate::fault::registry::Faults;
use crate::upstream::Upstreams;

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
    pub upstreams: Arc<ArcSwap<Upstreams>>,
    /// Connects to upstreams, and keeps their idle connections.
    pub connector: Connector,
}

impl Service {
    /// A listener that sends to the present `upstreams` and keeps so many idle connections to them.
    pub fn new(
        shared: Arc<Shared>,
        role: Role,
        listener: Listener,
        upstreams: Arc<ArcSwap<Upstreams>>,
        pool: usize,
    ) -> Service {
        let mut options = ConnectorOptions::new(pool);
        // Each peer brings its own roots; without a file Pingora would read the system's.
        options.ca_file = Some("/dev/null".into());
        if matches!(role, Role::Hop(_)) {
            shared.joins.expect_attempts();
        }
        Service {
            shared,
            role,
            listener,
            upstreams,
            connector: Connector::new(Some(options)),
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
