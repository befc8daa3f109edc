//! The requests of a run that have ended: on disk at once, put right when the run is over.

use std::fs::File;
use std::io;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Stamp;
use crate::request::row::Row;

use super::args::TimeOrigin;
use super::client::Exchange;
use super::clocks::{Clocks, SoFar};
use super::engine_logs::ByRid;
use super::error::Error;
use super::lag::Sending;
use super::output::{Begun, NewFile, Rows};
use super::spool::Spool;

/// A request that has ended.
#[derive(Debug)]
pub(super) struct Done {
    /// Its place in the schedule of all shards.
    pub(super) place: usize,
    pub(super) scheduled: Stamp,
    /// How long it waited for a slot.
    pub(super) slot_nanos: i64,
    pub(super) exchange: Exchange,
}

/// Where they go while the run goes on.
#[derive(Debug)]
pub(super) struct Files {
    /// For all that is needed in the end.
    pub(super) spool: File,
    /// For the rows as far as they are known when requests end.
    pub(super) partial: NewFile,
    /// What tells of the run should it be killed.
    pub(super) begun: Begun,
    /// What times in the rows count from.
    pub(super) times_from: TimeOrigin,
    /// Cancelled when the rows shall stay in `partial`.
    pub(super) skip_ordering: CancellationToken,
}

/// All that have ended so far.
#[derive(Debug)]
pub(super) struct Ended {
    own_clock: String,
    exchanges: Spool,
    /// Of each that was sent.
    sendings: Vec<Sending>,
    /// `None` also when its file took no more.
    partial: Option<Partial>,
    /// Why a request could not be kept.
    lost: Option<String>,
}

/// The rows as far as they are known when requests end.
#[derive(Debug)]
struct Partial {
    rows: Rows,
    clocks: SoFar,
}

impl Done {
    /// When it was sent; `None` of one that never was.
    pub(super) fn sending(&self) -> Option<Sending> {
        let late = self.exchange.sent?.nanos_since(self.scheduled);
        Some(Sending {
            scheduled: self.scheduled,
            late_nanos: late - self.slot_nanos,
            connect_nanos: self.exchange.connect_nanos,
            slot_nanos: self.slot_nanos,
        })
    }
}

impl Ended {
    /// None yet, of a run that began at `started`. Without files they stay in memory.
    pub(super) fn new(own_clock: String, started: Stamp, files: Option<Files>) -> Ended {
        let mut ended = Ended {
            own_clock,
            exchanges: Spool::default(),
            sendings: Vec::new(),
            partial: None,
            lost: None,
        };
        if let Some(files) = files {
            files.begun.write(started);
            ended.exchanges = Spool::in_file(files.spool, files.skip_ordering);
            let rows = files.partial.rows(files.times_from.of(started)).ok();
            let clocks = SoFar::new(ended.own_clock.clone());
            ended.partial = rows.map(|rows| Partial { rows, clocks });
        }
        ended
    }

    /// Takes in all that end, until there will be no more. Blocks.
    pub(super) fn take_all(mut self, mut from: mpsc::UnboundedReceiver<Done>) -> Ended {
        loop {
            let done = match from.try_recv() {
                Ok(done) => done,
                Err(mpsc::error::TryRecvError::Disconnected) => break,
                Err(mpsc::error::TryRecvError::Empty) => {
                    // A moment's rest: what there is goes to the system, which outlives this process.
                    self.write_partial(|partial| partial.rows.flush());
                    match from.blocking_recv() {
                        Some(done) => done,
                        None => break,
                    }
                }
            };
            self.take(done);
        }
        self.write_partial(|partial| partial.rows.flush());
        self
    }

    fn take(&mut self, done: Done) {
        self.sendings.extend(done.sending());
        if let Err(error) = self.exchanges.push(done.place, &done.exchange) {
            self.lost.get_or_insert(error.to_string());
        }
        self.write_partial(|partial| {
            partial
                .rows
                .write(&Row::all(partial.clocks.relate(done.exchange)))
        });
    }

    /// Where the file takes no more, the run goes on without it: what is told of a full disk is that the
    /// whole rows cannot be written in the end.
    fn write_partial(&mut self, write: impl FnOnce(&mut Partial) -> Result<(), Error>) {
        if let Some(Err(_)) = self.partial.as_mut().map(write) {
            self.partial = None;
        }
    }

    /// When those that were sent were sent, in the order in which they ended.
    pub(super) fn sendings(&self) -> &[Sending] {
        &self.sendings
    }

    /// Whether anybody still waits for what is made of them.
    pub(super) fn is_wanted(&self) -> bool {
        self.exchanges.is_wanted()
    }

    /// All clocks of the run, once no more requests end.
    ///
    /// # Errors
    /// What the disk answers, or one could not be kept.
    pub(super) fn clocks(&self) -> io::Result<Clocks> {
        self.clocks_told(ByRid::new())
    }

    /// The same with what engines told outside of their responses, which then is in the records too.
    ///
    /// # Errors
    /// As [`Ended::clocks`].
    pub(super) fn clocks_told(&self, told: ByRid) -> io::Result<Clocks> {
        match &self.lost {
            Some(lost) => Err(io::Error::other(lost.clone())),
            None => Clocks::of(&self.exchanges, &self.own_clock, told),
        }
    }

    /// Gives the rows of each request to `take`, in order of arrival, with all `clocks` related as far as
    /// the run tells.
    ///
    /// # Errors
    /// What the disk answers.
    pub(super) fn each(&self, clocks: &Clocks, mut take: impl FnMut(Vec<Row>)) -> io::Result<()> {
        clocks
            .requests(&self.exchanges)
            .try_for_each(|records| records.map(Row::all).map(&mut take))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::{End, Observer};
    use crate::request::timeline::Side;

    #[test]
    fn a_sending_has_no_wait_for_a_slot_in_it() {
        let scheduled = Stamp::from_nanos(1_000);
        let sending = |sent: Option<i64>| {
            let observer = Observer::new(Side::Traffic, Endpoint::Generate, "r".into());
            let exchange = Exchange {
                observed: observer.finish(End::Complete, scheduled),
                stamps: None,
                sent: sent.map(|nanos| scheduled.plus_nanos(nanos)),
                response_head: None,
                connect_nanos: 30,
            };
            let done = Done {
                place: 0,
                scheduled,
                slot_nanos: 200,
                exchange,
            };
            done.sending()
        };
        let sent = sending(Some(237)).unwrap();
        assert_eq!((sent.late_nanos, sent.connect_nanos), (37, 30));
        assert_eq!((sent.slot_nanos, sent.scheduled), (200, scheduled));
        assert_eq!(sending(None), None);
    }
}
