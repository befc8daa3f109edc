//! One listener's part of the proxy: what its connections and requests share.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pingora::connectors::ConnectorOptions;
use pingora::connectors::http::v1::Connector;

use crate::client::accept::Admission;
use crate::client::limits::Limits;
use crate::client::listener::Listener;
use crate::client::tls::Tls;
use crate::fault::registry::WorkerFaults;
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
    /// The worker's faults, where they can be injected.
    pub faults: Option<Arc<WorkerFaults>>,
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
        Service {
            faults: shared.faults_of(&role),
            shared,
            role,
            listener,
            upstreams,
            connector: Connector::new(Some(options)),
        }
    }

    /// The present limits on its clients.
    pub fn limits(&self) -> Limits {
        self.shared.limits(&self.role)
    }

    /// The certificate, where clients speak TLS.
    pub fn tls(&self) -> Option<&Tls> {
        let is_front = self.role == Role::Front;
        self.shared.tls.as_ref().filter(|_| is_front)
    }

    /// Whether clients may speak HTTP/2. Not at hops: routers try it there to find servers that speak gRPC; refused, they
    /// use HTTP/1.1.
    pub fn takes_http2(&self) -> bool {
        self.role == Role::Front
    }

    /// What becomes of a connection from `peer` that was just accepted.
    pub fn admit(&self, peer: SocketAddr) -> Admission {
        let faults = self.faults.as_ref();
        faults.map_or(Admission::Served, |faults| faults.admit(peer))
    }
}
