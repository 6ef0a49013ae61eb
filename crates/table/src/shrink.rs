//! Narrowing the columns of a table to the terminal's width.

use crate::layout::{COLUMN_GAP, Fit, MIN_COLUMN_WIDTH, SENTENCE_WIDTH};

/// Sentences of the wide form are not wrapped to less than this.
const WIDE_SENTENCE_WIDTH: usize = 40;

/// What narrowing a column needs to know of it.
pub(crate) struct Shrinking {
    pub fit: Fit,
    pub yields: u8,
    /// Whether its values are cut, or its words broken, last of all.
    pub whole: bool,
    /// The width to which only its heading becomes narrower.
    pub least_heading: usize,
    /// The width below which a sentence is broken inside a word.
    pub longest_word: usize,
}

/// Takes from the columns what does not fit into `width`, in rounds, in each always from the widest one: from headings, which only take
/// more lines; from sentences, for the same reason; from the columns of the highest rank; from sentences again; from the columns
/// without a rank; and from those that are whole.
pub(crate) fn shrink(widths: &mut [usize], columns: &[Shrinking], width: usize) {
    let mut over = excess(widths, width);
    let mut narrow = |of: &dyn Fn(&Shrinking) -> bool, least: &dyn Fn(&Shrinking) -> usize| {
        while over > 0 {
            let candidates = (0..widths.len()).filter(|at| of(&columns[*at]));
            let widest = candidates
                .filter(|at| widths[*at] > least(&columns[*at]))
                .max_by_key(|at| widths[*at]);
            let Some(widest) = widest else { break };
            widths[widest] -= 1;
            over -= 1;
        }
    };
    let wraps = |one: &Shrinking| one.fit == Fit::Wrap;
    let or_whole = |one: &Shrinking, width: usize| match (one.whole, wraps(one)) {
        (true, true) => one.longest_word,
        (true, false) => one.least_heading,
        (false, _) => width,
    };
    let by_fit = |one: &Shrinking| or_whole(one, one.fit.least());
    narrow(&|_| true, &|one| one.least_heading);
    // While another sentence can become narrower, none is broken inside a word.
    narrow(&wraps, &|one| or_whole(one, SENTENCE_WIDTH.max(one.longest_word)));
    narrow(&wraps, &|one| or_whole(one, SENTENCE_WIDTH));
    for rank in (1..=columns.iter().map(|one| one.yields).max().unwrap_or(0)).rev() {
        narrow(&|one| !wraps(one) && one.yields == rank, &by_fit);
    }
    narrow(&wraps, &by_fit);
    narrow(&|one| !wraps(one) && one.yields == 0, &by_fit);
    // The last rounds are for a terminal so narrow that every column has to give more, sentences last.
    narrow(&|one| !wraps(one), &|one| or_whole(one, MIN_COLUMN_WIDTH));
    narrow(&|_| true, &|one| or_whole(one, MIN_COLUMN_WIDTH));
    narrow(&|one| !wraps(one), &|one| or_whole(one, MIN_COLUMN_WIDTH / 2));
    narrow(&|_| true, &|_| 1);
}

/// Takes from sentences alone what does not fit into `width`, for the wide form; lines may stay longer.
pub(crate) fn shrink_sentences(widths: &mut [usize], columns: &[Shrinking], width: usize) {
    for _ in 0..excess(widths, width) {
        let sentences = widths.iter_mut().zip(columns).filter(|(_, one)| one.fit == Fit::Wrap);
        let sentences = sentences
            .map(|(width, _)| width)
            .filter(|width| **width > WIDE_SENTENCE_WIDTH);
        match sentences.max() {
            Some(widest) => *widest -= 1,
            None => return,
        }
    }
}

/// By how much the columns with the gaps between them are wider than `width`.
fn excess(widths: &[usize], width: usize) -> usize {
    let gaps = COLUMN_GAP * widths.len().saturating_sub(1);
    (widths.iter().sum::<usize>() + gaps).saturating_sub(width)
}
