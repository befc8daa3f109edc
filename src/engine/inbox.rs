//! What the joining thread is handed: bounded, and nobody who hands it something waits.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::Stamp;
use crate::request::record::Record;
use crate::request::sequence::TimingSource;
use crate::request::told::Told;

use super::span::EngineSpan;

/// What has been handed over and not been taken.
#[derive(Debug)]
pub struct Inbox {
    content: Mutex<Content>,
    came: Condvar,
    /// Requests that may lie here.
    most: usize,
}

/// A request that has ended and may wait.
#[derive(Debug)]
pub struct Ended {
    /// Its rows.
    pub rows: Vec<Record>,
    /// Who is to tell of it.
    pub wanted: TimingSource,
    /// How long it waits at most.
    pub deadline: Stamp,
}

/// A request that is not taken in.
#[derive(Debug)]
pub enum Refused {
    /// There is no room.
    Full(Vec<Record>),
    /// The inbox is closed.
    Closing(Vec<Record>),
}

/// All that lay there.
#[derive(Debug, Default)]
pub struct Content {
    /// Requests that have ended.
    pub ended: Vec<Ended>,
    /// Batches of spans.
    pub spans: Vec<Vec<EngineSpan>>,
    /// What was read elsewhere.
    pub told: Vec<Told>,
    /// How many spans there are.
    count: usize,
    /// Nothing more is taken in.
    pub is_closing: bool,
}

/// Spans that may lie here, and lines of logs: the thread takes all of them every few milliseconds.
const MOST: usize = 262_144;

impl Inbox {
    /// An empty one, for so many requests at most.
    pub fn new(most: usize) -> Inbox {
        Inbox {
            content: Mutex::default(),
            came: Condvar::new(),
            most,
        }
    }

    /// A request has ended.
    ///
    /// # Errors
    /// Its rows, where there is no room, or the inbox is closed.
    pub fn ended(&self, ended: Ended) -> Result<(), Refused> {
        let mut content = self.content.lock();
        if content.is_closing {
            return Err(Refused::Closing(ended.rows));
        }
        if content.ended.len() >= self.most {
            return Err(Refused::Full(ended.rows));
        }
        let is_first = content.is_empty();
        content.ended.push(ended);
        drop(content);
        self.wake(is_first);
        Ok(())
    }

    /// Spans have come. `false`: no room.
    pub fn spans(&self, spans: Vec<EngineSpan>) -> bool {
        let mut content = self.content.lock();
        if content.count > 0 && content.count + spans.len() > MOST {
            return false;
        }
        let is_first = content.is_empty();
        content.count += spans.len();
        content.spans.push(spans);
        drop(content);
        self.wake(is_first);
        true
    }

    /// Something was told. `false`: no room.
    pub fn told(&self, told: Told) -> bool {
        let mut content = self.content.lock();
        if content.told.len() >= MOST {
            return false;
        }
        let is_first = content.is_empty();
        content.told.push(told);
        drop(content);
        self.wake(is_first);
        true
    }

    /// No request is taken in from now on.
    pub fn close(&self) {
        self.content.lock().is_closing = true;
        self.came.notify_one();
    }

    /// Takes all there is; waits for something if there is nothing, for `patience` at most.
    pub fn take(&self, patience: Option<Duration>) -> Content {
        let mut content = self.content.lock();
        if content.is_empty() {
            match patience {
                Some(patience) => drop(self.came.wait_for(&mut content, patience)),
                None if !content.is_closing => self.came.wait(&mut content),
                None => {}
            }
        }
        let is_closing = content.is_closing;
        let taken = std::mem::take(&mut *content);
        content.is_closing = is_closing;
        Content {
            is_closing,
            ..taken
        }
    }

    /// Only who finds nothing there sleeps.
    fn wake(&self, is_first: bool) {
        if is_first {
            self.came.notify_one();
        }
    }
}

impl Content {
    fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.spans.is_empty() && self.told.is_empty()
    }
}
