//! What a run sends and when, as one sum and as a file.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use ring::digest;
use serde_json::value::RawValue;

use crate::disk::New;

use super::error::Error;
use super::plan::RunPlan;
use super::workload::conversation::FollowUp;
use super::workload::source::hex;
use super::workload::stored::{Header, Request, VERSION};

impl RunPlan {
    /// SHA-256 of when all shards send what, hexadecimal: of each request its offset in nanoseconds, the length of its
    /// body, the body; and of each further turn of its conversation think time, tokens asked for, length of the text,
    /// the text (numbers of eight bytes, the lowest first). The model's name is left out: it says who answers, not what
    /// is asked.
    ///
    /// # Errors
    /// As [`RunPlan::schedule`].
    pub fn workload_sha256(&self) -> Result<String, Error> {
        let plan = self.without_model();
        let mut sum = digest::Context::new(&digest::SHA256);
        for (number, offset) in (0..).zip(self.starts()?) {
            let body = plan.request(number);
            sum.update(&offset.to_le_bytes());
            sum.update(&(body.len() as u64).to_le_bytes());
            sum.update(&body);
            for next in plan.later_turns(number) {
                sum.update(&next.think_ns.to_le_bytes());
                sum.update(&next.output_length.to_le_bytes());
                sum.update(&(next.text.len() as u64).to_le_bytes());
                sum.update(next.text.as_bytes());
            }
        }
        Ok(hex(sum.finish().as_ref()))
    }

    /// Writes what all shards send, and when, to a new file, to be sent again as it stands with `--workload`. It names
    /// no model.
    ///
    /// # Errors
    /// As [`RunPlan::schedule`], or the file is there already or cannot be written.
    pub fn save_workload(&self, path: &Path) -> Result<(), Error> {
        let starts = self.starts()?;
        let header = Header {
            queuescope_workload: VERSION,
            backend: self.args.backend,
            requests: starts.len(),
            turns: self.most_turns,
        };
        let write = || {
            let mut file = New::first(path)?;
            let mut out = BufWriter::new(&mut file);
            writeln!(out, "{}", serde_json::to_string(&header)?)?;
            let plan = self.without_model();
            for (number, offset_ns) in (0..).zip(starts) {
                let request = plan.stored(number, offset_ns)?;
                writeln!(out, "{}", serde_json::to_string(&request)?)?;
            }
            out.flush()?;
            drop(out);
            file.put()
        };
        let written: io::Result<()> = write();
        written.map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => Error::Usage(format!(
                "--save-workload {}: is there already and is not written over; name a new file",
                path.display()
            )),
            _ => Error::file(path, cause),
        })
    }

    fn stored(&self, number: u64, offset_ns: i64) -> io::Result<Request> {
        let lengths = self.lengths(number);
        let body = self.request(number).to_vec();
        let body = String::from_utf8(body).map_err(io::Error::other)?;
        Ok(Request {
            offset_ns,
            input_length: lengths.input,
            output_length: lengths.output,
            data_id: lengths.data_id,
            body: RawValue::from_string(body)?,
            turns: self.later_turns(number).collect(),
        })
    }

    fn later_turns(&self, number: u64) -> impl Iterator<Item = FollowUp> {
        (1..).map_while(move |turn| self.follow_up(number, turn))
    }

    fn without_model(&self) -> RunPlan {
        let mut plan = self.clone();
        plan.args.model = None;
        plan
    }
}
