//! A listener of a test's own.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Serves each connection by a task of its own. Dropped, it ends with all of them.
pub struct Listening {
    pub addr: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Listening {
    /// On a free port; `serve` gets the number of each connection, from 0.
    pub async fn start<F: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(usize, TcpStream) -> F + Send + 'static,
    ) -> Listening {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Listening::on(listener, serve)
    }

    /// The same on a listener that stands already.
    pub fn on<F: Future<Output = ()> + Send + 'static>(
        listener: TcpListener,
        serve: impl Fn(usize, TcpStream) -> F + Send + 'static,
    ) -> Listening {
        let addr = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.spawn(serve(number, stream));
            }
        });
        Listening {
            addr,
            _tasks: tasks,
        }
    }
}
