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

/// `usage` is of the whole request: rows of several prompts have no share of it.
#[test]
fn the_prompt_tokens_of_a_response_are_its_rows_if_it_has_one_prompt() {
    for (n, sequences, own) in [(1, 1, Some(9)), (2, 2, Some(9)), (1, 2, None), (2, 4, None)] {
        let row = Sample::whole().with(|row| {
            row.internal.n = n;
            row.set_index(0, sequences);
            row.actual_prompt_tokens = None;
            row.internal.usage_prompt_tokens = Some(9);
        });
        let row = Row::ended(vec![row.open_row()]).remove(0);
        assert_eq!(row.actual_prompt_tokens, own, "{sequences}");
        assert_eq!(row.request_prompt_tokens, Some(9));
    }
}
