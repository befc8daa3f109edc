//! What has been read of a request's body, and is kept so as to be sent again.

use bytes::Bytes;

use crate::clock::Stamp;

/// The body of a request.
#[derive(Debug)]
pub(super) struct Upload {
    /// All pieces so far, while they may have to be sent to another upstream.
    kept: Option<Vec<Bytes>>,
    /// Bytes so far.
    pub(super) bytes: u64,
    /// How long pieces were waited for, in sum.
    pub(super) waited_nanos: i64,
    /// The next one has been waited for since.
    pub(super) since: Stamp,
    /// It has been read to its end.
    pub(super) is_over: bool,
    /// An upstream broke before that, and no more of it was read.
    pub(super) is_cut: bool,
}

/// Bytes that are kept to be sent again.
const KEEPS: usize = 64 * 1024;

impl Upload {
    pub(super) fn new(at: Stamp) -> Upload {
        Upload {
            kept: Some(Vec::new()),
            bytes: 0,
            waited_nanos: 0,
            since: at,
            is_over: false,
            is_cut: false,
        }
    }

    /// A piece came.
    pub(super) fn came(&mut self, bytes: usize, is_end: bool, at: Stamp) {
        self.waited_nanos += at.nanos_since(self.since).max(0);
        self.since = at;
        self.bytes += bytes as u64;
        self.is_over = is_end;
    }

    /// Keeps a piece that has not been sent yet.
    pub(super) fn hold(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.kept
                .iter_mut()
                .for_each(|kept| kept.push(piece.clone()));
        }
    }

    /// Keeps a piece that was sent, if it is not too much.
    pub(super) fn keep(&mut self, piece: Bytes) {
        let kept: usize = self.kept.iter().flatten().map(Bytes::len).sum();
        match kept + piece.len() <= KEEPS {
            true => self.hold(piece),
            false => self.forget(),
        }
    }

    /// It need not be sent again.
    pub(super) fn forget(&mut self) {
        self.kept = None;
    }

    /// Whether all of it that has been read is still there.
    pub(super) fn can_be_sent_again(&self) -> bool {
        self.kept.is_some()
    }

    /// What has been read and is to be sent first.
    pub(super) fn kept(&self) -> Vec<Bytes> {
        self.kept.clone().unwrap_or_default()
    }
}
