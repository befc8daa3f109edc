//! The flags of a server of a pair, and the rooms by which both servers find a request. `handover.rs` uses them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clock::Stamp;

use crate::request::names::names;
use crate::units::{MS, rate, time};

names! {
    /// What a server does of a request.
    #[derive(clap::ValueEnum)]
    pub enum Mode {
        /// All of it.
        Null = "null",
        /// Its prefill; the KV cache goes to a server that decodes.
        Prefill = "prefill",
        /// Its decode.
        Decode = "decode",
    }
}

/// The flags of a server of a pair.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Prefill and decode on servers of their own")]
pub struct Disaggregation {
    /// Be the prefill or the decode server of a pair
    #[arg(long, value_enum, default_value = "null", value_name = "MODE")]
    pub disaggregation_mode: Mode,
    /// Port where decode servers find a prefill server; 0 takes a free one, which is printed
    #[arg(long, value_name = "PORT", default_value_t = 8_998)]
    pub disaggregation_bootstrap_port: u16,
    /// Waiting requests for which a decode server reserves memory, besides the running ones
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub disaggregation_decode_extra_slots: usize,
    /// Prompt tokens whose KV cache a prefill server sends in a second, to all decode servers together
    #[arg(long, value_name = "RATE", default_value_t = 190_000.0, value_parser = rate(1e-3, 1e12))]
    pub transfer_tokens_per_s: f64,
    /// Least time of such a transfer, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1.0, value_parser = time(MS, 0.0, 1e6))]
    pub transfer_ms: f64,
    /// A decode server aborts a request this long after losing its prefill server, seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = time(1.0, 0.0, 1e6))]
    pub transfer_lost_s: f64,
}

/// The prefill server's address and the room that both servers of a pair get for a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bootstrap {
    pub host: String,
    pub port: u16,
    pub room: u64,
}

/// The rooms of a prefill server, and its link to the decode servers.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    rooms: Mutex<HashMap<u64, Weak<Room>>>,
    /// When the last transfer over the link ends.
    busy_until: Mutex<Option<Stamp>>,
    /// Counts, by its references, the requests that wait for memory on a decode server.
    pub waiting: Arc<()>,
    /// Counts, by its references, the requests whose KV cache is in transfer.
    pub sending: Arc<()>,
}

/// The state of a request that both servers share.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Cancelled when the decode server has reserved memory.
    pub reserved: CancellationToken,
    /// Cancelled when the KV cache has been sent.
    pub sent: CancellationToken,
}

impl Rooms {
    /// Returns the room of a number. It is dropped when both sides have left.
    pub(super) fn enter(&self, number: u64) -> Arc<Room> {
        let mut rooms = self.rooms.lock();
        rooms.retain(|_, room| room.strong_count() > 0);
        let known = rooms.get(&number).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let room = Arc::default();
            rooms.insert(number, Arc::downgrade(&room));
            room
        })
    }

    /// Adds a transfer that is ready at `from`, and returns when it ends. Transfers go one after the other.
    pub(super) fn transfer(&self, flags: &Disaggregation, tokens: u32, from: Stamp) -> Stamp {
        let mut busy_until = self.busy_until.lock();
        let from = busy_until.map_or(from, |until| until.max(from));
        let seconds = f64::from(tokens) / flags.transfer_tokens_per_s + flags.transfer_ms / 1e3;
        *busy_until.insert(from.plus_seconds(seconds))
    }
}
