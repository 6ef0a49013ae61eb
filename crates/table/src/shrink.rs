//! Narrowing the columns of a table to the terminal's width.

use unicode_width::UnicodeWidthStr;

use crate::layout::{Fit, Layout, TextStyle, longest_word};

/// Blanks between two columns.
pub(crate) const COLUMN_GAP: usize = 2;
/// A column is not cut below this width while another one can be cut.
const MIN_COLUMN_WIDTH: usize = 8;
/// The same for a column of names, since less of both ends does not tell pods apart, and for one of sentences.
const MIN_TEXT_WIDTH: usize = 16;
/// Sentences are wrapped to this width before any other column is cut.
const SENTENCE_WIDTH: usize = 24;

/// A column that is shown.
pub(crate) struct Shown {
    /// Its place among all columns.
    pub at: usize,
    pub layout: Layout,
    pub width: usize,
    /// The width to which it only takes more lines: of its heading's words and values, or of a sentence without breaking a word.
    least_whole: usize,
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
        let values = match layout.fit {
            Fit::Wrap if layout.whole => values.map(longest_word).max().unwrap_or(0),
            Fit::Wrap => values.map(longest_word).max().unwrap_or(0).max(SENTENCE_WIDTH),
            Fit::Cut | Fit::Shorten => widest,
        };
        Self {
            at,
            layout,
            width: widest.max(if has_heading { layout.heading.width() } else { 0 }),
            least_whole: values.max(longest_word(layout.heading)),
        }
    }

    /// The width to which it is cut while another column can become narrower.
    fn least(&self) -> usize {
        match self.layout.fit {
            _ if self.layout.whole => self.least_whole,
            _ if self.layout.least > 0 => self.layout.least,
            Fit::Cut => MIN_COLUMN_WIDTH,
            Fit::Shorten | Fit::Wrap => MIN_TEXT_WIDTH,
        }
    }
}

/// The columns, as narrow as they must be to fit into the style's width; those of the wide form keep their widths. First they take more
/// lines, then those of the highest rank are cut, and those without a rank last.
pub(crate) fn fit_columns(mut columns: Vec<Shown>, style: TextStyle) -> Vec<Shown> {
    if let Some(width) = style.width.filter(|_| !style.wide) {
        narrow(&mut columns, width, |_| true, |one| one.least_whole);
        for rank in (0..=9).rev() {
            narrow(&mut columns, width, |one| one.layout.yields == rank, Shown::least);
        }
        narrow(
            &mut columns,
            width,
            |one| one.layout.fit != Fit::Wrap && !one.layout.whole,
            |_| MIN_COLUMN_WIDTH / 2,
        );
        narrow(&mut columns, width, |_| true, |_| 1);
    }
    columns
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
