use super::*;
use crate::request::sample::Sample;

/// Of two prompts with two samples each, one sample brought nothing before the response was cut, and so has no row; the very first has
/// one all the same.
#[test]
fn a_prompts_tokens_count_once_whichever_of_its_samples_came() {
    for (came, without) in [
        (&[0, 1, 2][..], None),
        (&[0, 1, 3], None),
        (&[0, 2, 3], None),
        (&[0, 1, 2, 3], Some(0)),
    ] {
        let row = |index: u32| {
            let sample = Sample::whole().with(|row| {
                row.internal.n = 2;
                row.set_index(index, came.len() as u32);
                let is_told = without != Some(index);
                row.actual_prompt_tokens = is_told.then_some([6, 6, 7, 7][index as usize]);
                row.cached_tokens = is_told.then_some(1);
                row.actual_output_tokens = Some(2);
            });
            sample.open_row()
        };
        for row in Row::ended(came.iter().copied().map(row).collect()) {
            assert_eq!(row.request_prompt_tokens, Some(6 + 7), "{came:?}");
            assert_eq!(row.request_cached_tokens, Some(2), "{came:?}");
            let output = 2 * came.len() as u64;
            assert_eq!(row.request_output_tokens, Some(output), "{came:?}");
        }
    }
}
