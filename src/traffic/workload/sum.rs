//! What a run sends and when, as one sum.

use ring::digest;

use crate::traffic::error::Error;
use crate::traffic::plan::RunPlan;

use super::source::hex;

impl RunPlan {
    /// SHA-256 of when all shards send what, hexadecimal: of each request its offset in nanoseconds, the length of its
    /// body, the body; and of each further turn of its conversation think time, tokens asked for, length of the text,
    /// the text (numbers of eight bytes, the lowest first). The model's name is left out: it says who answers, not what
    /// is asked.
    ///
    /// # Errors
    /// As [`RunPlan::schedule`].
    pub fn workload_sha256(&self) -> Result<String, Error> {
        let mut plan = self.clone();
        plan.args.model = None;
        let mut sum = digest::Context::new(&digest::SHA256);
        for (number, offset) in (0..).zip(self.starts()?) {
            let body = plan.request(number);
            sum.update(&offset.to_le_bytes());
            sum.update(&(body.len() as u64).to_le_bytes());
            sum.update(&body);
            for next in (1..).map_while(|turn| plan.follow_up(number, turn)) {
                sum.update(&next.think_ns.to_le_bytes());
                sum.update(&next.output_length.to_le_bytes());
                sum.update(&(next.text.len() as u64).to_le_bytes());
                sum.update(next.text.as_bytes());
            }
        }
        Ok(hex(sum.finish().as_ref()))
    }
}
