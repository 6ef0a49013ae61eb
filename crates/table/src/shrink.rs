//! Narrowing the columns of a table to the terminal's width.

use unicode_width::UnicodeWidthStr;

use crate::layout::{Fit, Layout, TextStyle, longest_word};

/// Blanks between two columns.
pub(crate) const COLUMN_GAP: usize = 2;
/// A column is not cut below this width while another one can be cut.
const MIN_COLUMN_WIDTH: usize = 8;
/// The same for a column of names: less of both ends does not tell pods apart; and for one of sentences.
const MIN_TEXT_WIDTH: usize = 16;
/// Sentences are wrapped to this width before any other column is cut.
const SENTENCE_WIDTH: usize = 24;
/// Sentences of the wide form are not wrapped to less than this.
const WIDE_SENTENCE_WIDTH: usize = 40;

/// A column that is shown.
pub(crate) struct Shown {
    /// Its place among all columns.
    pub at: usize,
    pub layout: Layout,
    pub width: usize,
    /// The width to which only its heading becomes narrower.
    least_heading: usize,
    /// The width below which a sentence is broken inside a word.
    longest_word: usize,
}

impl Shown {
    /// As wide as its values, and its heading where there is one.
    pub(crate) fn new<'a>(
        at: usize,
        layout: Layout,
        values: impl Iterator<Item = &'a str> + Clone,
        has_heading: bool,
    ) -> Self {
        let widest = values.clone().map(UnicodeWidthStr::width).max().unwrap_or(0);
        let word = longest_word(layout.heading);
        let of_heading = if layout.whole { word } else { 0 };
        Self {
            at,
            layout,
            width: widest.max(if has_heading { layout.heading.width() } else { 0 }),
            least_heading: widest.max(word),
            longest_word: values.map(longest_word).max().unwrap_or(0).max(of_heading),
        }
    }

    fn wraps(&self) -> bool {
        self.layout.fit == Fit::Wrap
    }

    /// `width`, but of a column that is whole not less than its values, or the words of its sentences.
    fn or_whole(&self, width: usize) -> usize {
        match (self.layout.whole, self.wraps()) {
            (true, true) => self.longest_word,
            (true, false) => self.least_heading,
            (false, _) => width,
        }
    }

    fn by_fit(&self) -> usize {
        self.or_whole(match self.layout.fit {
            Fit::Cut => MIN_COLUMN_WIDTH,
            Fit::Shorten | Fit::Wrap => MIN_TEXT_WIDTH,
        })
    }
}

/// The columns, as narrow as they must be to fit into the style's width. In the wide form only sentences become narrower.
pub(crate) fn fit_columns(mut columns: Vec<Shown>, style: TextStyle) -> Vec<Shown> {
    match style.width {
        None => {}
        Some(width) if style.wide => narrow(&mut columns, width, Shown::wraps, |_| WIDE_SENTENCE_WIDTH),
        Some(width) => shrink(&mut columns, width),
    }
    columns
}

/// Takes from the columns what does not fit into `width`, in rounds: from headings, which only take more lines; from sentences, for the
/// same reason; from the columns of the highest rank; from sentences again; from the columns without a rank; and from those that are whole.
fn shrink(columns: &mut [Shown], width: usize) {
    let mut round = |of: &dyn Fn(&Shown) -> bool, least: &dyn Fn(&Shown) -> usize| narrow(columns, width, of, least);
    let (all, cut) = (&|_: &Shown| true, &|one: &Shown| !one.wraps());
    round(all, &|one| one.least_heading);
    // While another sentence can become narrower, none is broken inside a word.
    round(&Shown::wraps, &|one| one.or_whole(SENTENCE_WIDTH.max(one.longest_word)));
    round(&Shown::wraps, &|one| one.or_whole(SENTENCE_WIDTH));
    for rank in (1..=9).rev() {
        round(&|one| !one.wraps() && one.layout.yields == rank, &Shown::by_fit);
    }
    round(&Shown::wraps, &Shown::by_fit);
    round(cut, &Shown::by_fit);
    // For a terminal so narrow that every column has to give more, sentences last.
    round(cut, &|one| one.or_whole(MIN_COLUMN_WIDTH / 2));
    round(all, &|_| 1);
}

/// Takes always from the widest of these columns, until all fit into `width` or none of these can become narrower.
fn narrow(columns: &mut [Shown], width: usize, of: impl Fn(&Shown) -> bool, least: impl Fn(&Shown) -> usize) {
    let gaps = COLUMN_GAP * columns.len().saturating_sub(1);
    for _ in width..columns.iter().map(|one| one.width).sum::<usize>() + gaps {
        let candidates = columns.iter_mut().filter(|one| of(one) && one.width > least(one));
        match candidates.max_by_key(|one| one.width) {
            Some(widest) => widest.width -= 1,
            None => return,
        }
    }
}
