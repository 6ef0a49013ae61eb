//! Narrowing the columns of a table to the terminal's width.

use std::cmp::Reverse;

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
    /// The width to which it is cut while another column can become narrower.
    least: usize,
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
        let (values, least) = match layout.fit {
            Fit::Wrap => {
                let sentence = if layout.least > 0 { 0 } else { SENTENCE_WIDTH };
                (
                    values.map(longest_word).max().unwrap_or(0).max(sentence),
                    MIN_TEXT_WIDTH,
                )
            }
            Fit::Shorten => (widest, MIN_TEXT_WIDTH),
            Fit::Cut => (widest, MIN_COLUMN_WIDTH),
        };
        let least_whole = values.max(longest_word(layout.heading));
        Self {
            at,
            layout,
            width: widest.max(if has_heading { layout.heading.width() } else { 0 }),
            least_whole,
            least: if layout.least > 0 {
                layout.least.min(least_whole)
            } else {
                least
            },
        }
    }

    /// When it becomes narrower: first columns take more lines, then those of the highest rank are cut, and those without a rank last. `None`: it
    /// cannot.
    fn turn(&self) -> Option<u8> {
        let may_be_tiny = self.layout.fit != Fit::Wrap && self.layout.least == 0;
        match self.width {
            0 | 1 => None,
            width if width > self.least_whole => Some(0),
            width if width > self.least => Some(10 - self.layout.yields),
            width if may_be_tiny && width > MIN_COLUMN_WIDTH / 2 => Some(11),
            _ => Some(12),
        }
    }
}

/// The columns, as narrow as they must be to fit into the style's width; those of the wide form keep their widths. It is always the widest
/// whose turn it is that becomes narrower.
pub(crate) fn fit_columns(mut columns: Vec<Shown>, style: TextStyle) -> Vec<Shown> {
    let room = style.width.filter(|_| !style.wide).unwrap_or(usize::MAX);
    let gaps = COLUMN_GAP * columns.len().saturating_sub(1);
    while columns.iter().map(|one| one.width).sum::<usize>() + gaps > room {
        let turns = columns.iter_mut().filter_map(|one| Some((Reverse(one.turn()?), one)));
        match turns.max_by_key(|(turn, one)| (*turn, one.width)) {
            Some((_, widest)) => widest.width -= 1,
            None => break,
        }
    }
    columns
}
