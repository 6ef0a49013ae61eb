//! Findings as stacked lines: a label, the subject and the fact on one line, the fix below the fact.

use super::{Meaning, TextStyle, columns, printable, wrap};

/// The least room for text on a narrow terminal.
const MIN_ROOM: usize = 24;

/// A finding. Facts of several findings begin in one column if their subjects are padded to the same width. Without a fix there is one line.
pub(crate) fn finding(label: (&str, Meaning), subject: &str, fact: &str, fix: &str, style: TextStyle) -> String {
    stacked(label, subject, &[("", fact), ("fix: ", fix)], style)
}

/// Texts below each other, each with what it begins with; empty ones are left out.
pub(crate) fn stacked(
    label: (&str, Meaning),
    subject: &str,
    texts: &[(&str, impl AsRef<str>)],
    style: TextStyle,
) -> String {
    let (label, meaning) = label;
    let subject = printable(subject);
    let indent = columns(label) + columns(&subject) + 4;
    let room = style.width.map(|width| width.saturating_sub(indent).max(MIN_ROOM));
    let texts = texts.iter().filter(|(_, text)| !text.as_ref().is_empty());
    let texts = texts.map(|(begin, text)| printable(&format!("{begin}{}", text.as_ref())));
    let lines = texts.flat_map(|text| match room {
        Some(room) => wrap(&text, room),
        None => vec![text],
    });
    let lines: Vec<String> = lines.collect();
    let beside = lines.join(&format!("\n{}", " ".repeat(indent)));
    format!("{}  {subject}  {beside}\n", meaning.paint(label, style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixtures::columns;

    #[test]
    fn the_fix_is_below_the_fact_and_nothing_controls_the_terminal() {
        let label = ("FAIL", Meaning::Broken);
        let text = finding(
            label,
            "a\x1b",
            "one two three four five six seven",
            "run it",
            columns(34),
        );
        assert_eq!(
            text,
            "FAIL  a?  one two three four five\n          six seven\n          fix: run it\n"
        );
        assert_eq!(finding(label, "a", "one", "", columns(80)), "FAIL  a  one\n");
    }
}
