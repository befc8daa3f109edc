//! The exchanges of a run, kept outside of memory until all is known that their rows need.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tokio_util::sync::CancellationToken;

use super::client::Exchange;

/// Exchanges that have ended, in that order. Those that the file does not take stay in memory: a full disk
/// costs no figures.
#[derive(Debug, Default)]
pub(super) struct Spool {
    file: Option<File>,
    /// The file took no more.
    full: bool,
    /// How much the file holds, bytes.
    filed: u64,
    /// What follows the file's part.
    tail: Vec<u8>,
    entries: Vec<Location>,
    /// Cancelled when nobody wants them back any more.
    unwanted: CancellationToken,
}

/// Where an exchange is.
#[derive(Clone, Copy, Debug)]
struct Location {
    /// Its place in the schedule.
    planned: u32,
    /// One past its last byte.
    end: u64,
}

/// Bytes gathered before they go to the file.
const BLOCK: usize = 256 << 10;

impl Spool {
    /// A spool in `file`, which must be empty. It gives nothing back once `unwanted` is cancelled.
    pub(super) fn in_file(file: File, unwanted: CancellationToken) -> Spool {
        Spool {
            file: Some(file),
            unwanted,
            ..Spool::default()
        }
    }

    /// Adds the exchange of the request at this place of the schedule.
    ///
    /// # Errors
    /// It has no form in bytes, which no exchange has shown yet; it is then left out.
    pub(super) fn push(&mut self, planned: usize, exchange: &Exchange) -> io::Result<()> {
        let bytes = postcard::to_stdvec(exchange).map_err(io::Error::other)?;
        self.tail.extend_from_slice(&bytes);
        self.entries.push(Location {
            // Plans are bounded far below.
            planned: u32::try_from(planned).unwrap_or(u32::MAX),
            end: self.filed + self.tail.len() as u64,
        });
        if self.tail.len() >= BLOCK
            && !self.full
            && let Some(file) = &self.file
        {
            // What a file that is full has of this block is not looked at.
            self.full = file.write_all_at(&self.tail, self.filed).is_err();
            if !self.full {
                self.filed += self.tail.len() as u64;
                self.tail.clear();
            }
        }
        Ok(())
    }

    /// How many exchanges there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The place in the schedule of the `nth` exchange.
    pub(super) fn planned(&self, nth: usize) -> u32 {
        self.entries
            .get(nth)
            .map_or(u32::MAX, |entry| entry.planned)
    }

    /// Whether anybody wants the exchanges back.
    pub(super) fn is_wanted(&self) -> bool {
        !self.unwanted.is_cancelled()
    }

    /// The `nth` exchange.
    ///
    /// # Errors
    /// There is none, nobody wants it any more, or what the system answers.
    pub(super) fn get(&self, nth: usize) -> io::Result<Exchange> {
        if !self.is_wanted() {
            return Err(io::Error::other("stopped by a signal"));
        }
        let none = || io::Error::other(format!("no exchange {nth}"));
        let end = self.entries.get(nth).ok_or_else(none)?.end;
        let before = nth.checked_sub(1).and_then(|n| self.entries.get(n));
        let start = before.map_or(0, |entry| entry.end);
        let read = |bytes: &[u8]| postcard::from_bytes(bytes).map_err(io::Error::other);
        if let Some(from) = start.checked_sub(self.filed) {
            let place = from as usize..(end - self.filed) as usize;
            return read(self.tail.get(place).ok_or_else(none)?);
        }
        let mut bytes = vec![0; (end - start) as usize];
        let file = self.file.as_ref().ok_or_else(none)?;
        file.read_exact_at(&mut bytes, start)?;
        read(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::{End, Observer};
    use crate::request::timeline::Side;

    fn exchange(number: usize) -> Exchange {
        let at = Stamp::from_nanos(number as i64);
        let observer = Observer::new(Side::Traffic, Endpoint::Generate, format!("r{number}"));
        Exchange {
            observed: observer.finish(End::Timeout("late".into()), at),
            stamps: None,
            sent: Some(at),
            response_head: None,
            connect_nanos: 0,
        }
    }

    /// Several blocks' worth come back as they went in, in any order.
    fn assert_keeps(mut spool: Spool) -> Spool {
        const COUNT: usize = 10_000;
        for number in 0..COUNT {
            spool.push(COUNT - number, &exchange(number)).unwrap();
        }
        assert_eq!(spool.len(), COUNT);
        for number in (0..COUNT).rev() {
            let kept = spool.get(number).unwrap();
            assert_eq!(format!("{kept:?}"), format!("{:?}", exchange(number)));
            assert_eq!(spool.planned(number), (COUNT - number) as u32);
        }
        assert!(spool.get(COUNT).is_err());
        spool
    }

    #[test]
    fn what_is_kept_in_a_file_leaves_memory() {
        let unwanted = CancellationToken::new();
        let file = tempfile::tempfile().unwrap();
        let spool = assert_keeps(Spool::in_file(file, unwanted.clone()));
        assert!(spool.filed > 2 * BLOCK as u64, "{}", spool.filed);
        assert!(spool.tail.len() < BLOCK);
        assert!(spool.get(0).is_ok());
        unwanted.cancel();
        let error = spool.get(0).unwrap_err().to_string();
        assert_eq!(error, "stopped by a signal");
    }

    #[test]
    fn a_full_disk_costs_memory_and_nothing_else() {
        let full = File::options().read(true).write(true).open("/dev/full");
        let spool = assert_keeps(Spool::in_file(full.unwrap(), CancellationToken::new()));
        assert_eq!(spool.filed, 0);
        assert_keeps(Spool::default());
    }
}
