//! What a server of a pair is told by its flags, and the rooms in which it and the other server meet; `handover.rs` has the work.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clock::Stamp;

use super::flags;
use crate::request::names::names;
use crate::units::{MS, rates, time};

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
    /// Requests for which a decode server keeps room beside those that run
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub disaggregation_decode_extra_slots: usize,
    /// Prompt tokens whose KV cache a prefill server sends in a second, to all decode servers together
    #[arg(long, value_name = "RATE", default_value_t = 190_000.0, value_parser = rates(1e-3, 1e12))]
    pub transfer_tokens_per_s: f64,
    /// Least time of such a transfer, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1.0, value_parser = time(MS, 0.0, 1e6))]
    pub transfer_ms: f64,
    /// A decode server gives a request up so long after its prefill server was lost, seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = time(1.0, 0.0, 1e6))]
    pub transfer_lost_s: f64,
}

/// Where a sequence's prefill and decode meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bootstrap {
    pub host: String,
    pub port: u16,
    pub room: u64,
}

/// The rooms of a prefill server, and its link.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    rooms: Mutex<HashMap<u64, Weak<Room>>>,
    /// The link is busy until then.
    busy: Mutex<Option<Stamp>>,
    /// Each request that waits for a decode server's place holds one of these.
    pub waiting: Arc<()>,
    /// Each whose KV cache is on its way holds one of these.
    pub sending: Arc<()>,
}

/// How far the two have come with a request.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The decode server has a place for it.
    pub reserved: CancellationToken,
    /// Its KV cache is there.
    pub sent: CancellationToken,
}

impl Default for Disaggregation {
    fn default() -> Disaggregation {
        flags::default()
    }
}

impl Rooms {
    /// The room of a number; it is forgotten when both have left.
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

    /// When a transfer that is ready at `from` ends: they go one after the other.
    pub(super) fn transfer(&self, flags: &Disaggregation, tokens: u32, from: Stamp) -> Stamp {
        let mut busy = self.busy.lock();
        let from = busy.map_or(from, |busy| busy.max(from));
        let seconds = f64::from(tokens) / flags.transfer_tokens_per_s + flags.transfer_ms / 1e3;
        *busy.insert(from.plus_seconds(seconds))
    }
}
