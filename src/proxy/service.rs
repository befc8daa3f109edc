//! What the connections and requests of one listener share.

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

/// A listener of the proxy, with its upstreams.
pub struct Service {
    /// What it shares with the other listeners.
    pub shared: Arc<Shared>,
    /// Whether it is the front or a hop.
    pub role: Role,
    /// Its connections and its life.
    pub listener: Listener,
    /// Where requests go. A reload replaces them.
    pub upstreams: ArcSwap<Upstreams>,
    /// Connects to upstreams.
    pub connector: Connector,
    /// Idle connections to upstreams.
    pub idle: Idle,
}

impl Service {
    /// Creates a listener.
    pub fn new(
        shared: Arc<Shared>,
        role: Role,
        listener: Listener,
        upstreams: Arc<Upstreams>,
    ) -> Service {
        // The connector's own pool is not used.
        let mut options = ConnectorOptions::new(1);
        // Has Pingora use the runtime's timers: its own are kept until they are due even if they are dropped, and a thread looks
        // at them 100 times a second.
        set_fast_timeout_to_tokio_threshold(Some(Duration::ZERO));
        // Each peer has its own roots; without a file Pingora would read the system's.
        options.ca_file = Some("/dev/null".into());
        Service {
            shared,
            role,
            listener,
            upstreams: upstreams.into(),
            connector: Connector::new(Some(options)),
            idle: Idle::start(),
        }
    }

    /// Returns the faults that can be injected here, and the worker's name.
    pub fn faults(&self) -> Option<(&Faults, &str)> {
        Some((self.shared.faults.as_ref()?, self.role.worker()?))
    }

    /// Returns the certificate, if clients speak TLS.
    pub fn tls(&self) -> Option<&Tls> {
        let tls = self.shared.tls.as_ref();
        tls.filter(|_| self.role == Role::Front)
    }
}
