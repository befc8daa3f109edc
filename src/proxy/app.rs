//! Our service as the socket side sees it.

use std::net::SocketAddr;
use std::sync::Arc;

use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;

use crate::edge::app::{Admission, App, ClientError, ClientLimits};
use crate::edge::tls::Tls;
use crate::fault::registry::WorkerFaults;
use crate::telemetry::prometheus::Limit;

use super::service::Service;
use super::shared::{Role, Shared};

/// A listener's part of the proxy.
pub struct ProxyApp {
    proxy: Arc<HttpProxy<Service>>,
    shared: Arc<Shared>,
    role: Role,
    faults: Option<Arc<WorkerFaults>>,
}

impl ProxyApp {
    /// For the listener of this role.
    pub fn new(proxy: HttpProxy<Service>, role: Role, shared: Arc<Shared>) -> ProxyApp {
        ProxyApp {
            proxy: Arc::new(proxy),
            faults: shared.faults_of(&role),
            shared,
            role,
        }
    }
}

impl App for ProxyApp {
    async fn answer(
        &self,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        self.proxy.process_new_http(session, shutdown).await
    }

    fn limits(&self) -> ClientLimits {
        let is_limited = self.shared.limits_clients_of(&self.role);
        self.shared.settings.load().limits.client(is_limited)
    }

    fn tls(&self) -> Option<&Tls> {
        let is_front = self.role == Role::Front;
        self.shared.tls.as_ref().filter(|_| is_front)
    }

    /// Not at hops: routers try HTTP/2 there to find servers that speak gRPC; refused, they use HTTP/1.1.
    fn takes_http2(&self) -> bool {
        self.role == Role::Front
    }

    fn admit(&self, peer: SocketAddr) -> Admission {
        let faults = self.faults.as_ref();
        faults.map_or(Admission::Served, |faults| faults.admit(peer))
    }

    fn count(&self, error: ClientError) {
        let metrics = &self.shared.metrics;
        let limit = match error {
            ClientError::TooManyConnections => Limit::Connections,
            ClientError::HeadTooLarge => Limit::HeadBytes,
            ClientError::HeadTooSlow => Limit::HeadTime,
            ClientError::ResponseTooSlow => Limit::Stall,
            ClientError::BrokenHead => return metrics.broken_head(),
            ClientError::Tls => return metrics.tls_failed(),
        };
        metrics.client_limit(limit);
    }
}
