//! Groups of prompts that begin with the same words, as in SGLang's `generated-shared-prefix`: to test prefix caches, and routers that
//! know of them.

use std::sync::Arc;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::error::Error;
use crate::traffic::args::SharedPrefixArgs;

use super::dataset::{Content, Dataset, Entry};

/// The random stream of the order; the schedule and the requests use others.
const ORDER_STREAM: u64 = (1 << 60) + 1;
/// More prompts are taken for a typing error.
const MAX_PROMPTS: u64 = 10_000_000;

impl SharedPrefixArgs {
    /// Generates the prompts of all groups, shuffled. After the last, new ones of the same groups follow in the same order.
    ///
    /// # Errors
    /// [`Error::usage`]: there would be too many.
    pub fn dataset(&self, seed: u64) -> Result<Dataset, Error> {
        let (groups, prompts) = (self.gsp_num_groups, self.gsp_prompts_per_group);
        if u64::from(groups) * u64::from(prompts) > MAX_PROMPTS {
            return Err(Error::usage(format!(
                "--gsp-num-groups {groups} × --gsp-prompts-per-group {prompts}: must be {MAX_PROMPTS} prompts at most"
            )));
        }
        let all = (0..u64::from(groups)).flat_map(|group| {
            let content = Content::Words {
                shared_parts: [group].into(),
                words_per_part: self.gsp_system_prompt_len,
                has_own_paragraph: true,
            };
            let entry = Entry {
                input: Some(self.gsp_system_prompt_len + self.gsp_question_len),
                output: Some(self.gsp_output_len),
                data_id: Some(format!("group-{group}")),
                ..Entry::random(content)
            };
            std::iter::repeat_n(Arc::new(entry), prompts as usize)
        });
        let mut order: Vec<Arc<Entry>> = all.collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(ORDER_STREAM);
        order.shuffle(&mut rng);
        Ok(Dataset::of(order))
    }
}
