use super::*;
use crate::request::sample::Sample;

/// Of two prompts with two samples each, one sample brought nothing before the response was cut.
#[test]
fn a_prompts_tokens_count_once_whichever_of_its_samples_came() {
    for came in [[0, 1, 2], [0, 1, 3], [0, 2, 3]] {
        let row = |index: u32| {
            let sample = Sample::whole().with(|row| {
                row.internal.n = 2;
                row.set_index(index, 3);
                row.actual_prompt_tokens = Some([6, 6, 7, 7][index as usize]);
                row.cached_tokens = Some(1);
                row.actual_output_tokens = Some(2);
            });
            sample.open_row()
        };
        for row in Row::ended(came.map(row).to_vec()) {
            assert_eq!(row.request_prompt_tokens, Some(6 + 7), "{came:?}");
            let cached = (came != [0, 1, 3]).then_some(2);
            assert_eq!(row.request_cached_tokens, cached, "{came:?}");
            assert_eq!(row.request_output_tokens, Some(6), "{came:?}");
        }
    }
}
