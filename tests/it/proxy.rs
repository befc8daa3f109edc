//! The proxy, in front of a scripted server on raw TCP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use queuescope::clock::{Clock, Stamp};
use queuescope::config::proxy::Config;
use queuescope::request::Stamps;
use queuescope::serve::lifecycle::Proxy;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::support::admin::{ask, get, metric};
use crate::support::clients::{Clients, server};
use crate::support::collector::{CLIENT, Collector};
use crate::support::docs::assert_file;
use crate::support::http2::{Answer, Http2};
use crate::support::listening::Listening;
use crate::support::process::{Done, NOTIFY, PROGRAM, Process, limited, queuescope, run_aside};
use crate::support::proxy::{
    Front, Row, all_rows, answering, assert_cells, assert_outcome, assert_row, config,
    known_workers, nanos, number, playing, rows, setting, started, worker, workers,
};
use crate::support::recordings::{self, Recording};
use crate::support::router::free_port;
use crate::support::tls::Authority;
use crate::support::upstream::{
    DONE, EVENT, Gate, Seen, Step, Upstream, begun, done, endless, gated, refusing, refusing_yet,
};
use crate::support::wire::{
    self, Client, PATIENCE, Reader, Response, chunk, headers, json_response, post, post_chunked,
    stream_head, until, until_async,
};
use crate::support::{assert_says, table};

mod admin;
mod balance;
mod bytes;
mod cache_aware;
mod differential;
mod ends;
mod faults;
mod framing;
mod hops;
mod http2;
mod identity;
mod leaving;
mod limits;
mod live;
mod process;
mod reload;
mod restart;
mod tls;
mod uploads;
