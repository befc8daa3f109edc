//! The servers' request logs on this disk: they tell of streamed chats what their responses do not. Read when a run is over.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use crate::engine::request_log::Folder;
use crate::request::told::Told;

/// What was told of sequences, by the engine's ids of them.
pub(super) type ByRid = HashMap<String, Told>;

/// The logs of a folder, from the beginning of a run on.
#[derive(Debug)]
pub(super) struct EngineLogs(Folder);

/// How often they are looked at for lines that are still to come, and how many times: a server writes a line when the
/// response is over.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: usize = 40;

impl EngineLogs {
    /// What lies in `folder` by now is not of the run.
    pub(super) fn begin(folder: &Path) -> EngineLogs {
        let mut logs = Folder::new(folder.to_owned());
        logs.look(&mut |_| {});
        EngineLogs(logs)
    }

    /// What was written since the run began, of `requests` that have ended. Blocks, for the whole two seconds where one has no
    /// line: of a client that left there is never one.
    pub(super) fn told(mut self, requests: usize) -> ByRid {
        let mut told = ByRid::new();
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(LOOK);
            }
            self.0.look(&mut |line| {
                told.extend(line.rid.clone().map(|rid| (rid, line)));
            });
            if told.len() >= requests {
                break;
            }
        }
        told
    }
}
