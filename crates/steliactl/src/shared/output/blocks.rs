//! Stacked lines: a label with a text beside it, which goes on below itself where it is longer than the terminal is wide.

use super::{Meaning, TextStyle, columns, printable, shorten, wrap};

/// The least width of a text beside a label on a terminal.
const MIN_WIDTH: usize = 24;
/// A path that is longer is shortened on a terminal.
const MAX_PATH_WIDTH: usize = 44;

/// A name, what it says, and what that means.
pub(crate) type Fact = (String, String, Meaning);

/// Facts, one below the other.
pub(crate) fn facts(facts: &[Fact], style: TextStyle) -> String {
    let widest = facts.iter().map(|(name, ..)| columns(name)).max().unwrap_or(0);
    let lines = facts.iter();
    lines
        .map(|(name, text, meaning)| hanging(name, widest + 2, *meaning, text, style))
        .collect()
}

/// A label with a text beside it, whose lines all begin in column `indent`.
pub(crate) fn hanging(label: &str, indent: usize, meaning: Meaning, text: &str, style: TextStyle) -> String {
    let blanks = " ".repeat(indent.saturating_sub(columns(label)));
    meaning.paint(label, style) + &blanks + &beside(indent, text, style)
}

/// A finding: its label, whom it is about and the fact; below these what follows and what to do, unless empty.
pub(crate) fn stacked(
    (label, meaning): (&str, Meaning),
    subject: &str,
    fact: &str,
    effect: &str,
    fix: &str,
    style: TextStyle,
) -> String {
    let mut lines = hanging(label, 6, meaning, &format!("{subject}: {fact}"), style);
    for (name, text) in [("      effect", effect), ("      fix", fix)] {
        if !text.is_empty() {
            lines += &hanging(name, 14, Meaning::Plain, text, style);
        }
    }
    lines
}

/// The lines of a text, of which all but the first begin in column `indent`. On a terminal long paths lose their middle, and no line ends
/// behind the word "steliactl".
fn beside(indent: usize, text: &str, style: TextStyle) -> String {
    let text = printable(text);
    let lines = match style.width {
        None => vec![text],
        Some(width) => {
            let room = width.saturating_sub(indent).max(MIN_WIDTH);
            let is_path = |word: &str| word.starts_with('/');
            let most = |word: &str| {
                if is_path(word) {
                    room.min(MAX_PATH_WIDTH)
                } else {
                    usize::MAX
                }
            };
            let word = |word| shorten(word, most(word));
            let words: Vec<String> = text.split(' ').map(word).collect();
            let text = words.join(" ").replace("steliactl ", "steliactl\u{a0}");
            let lines = wrap(&text, room).into_iter();
            lines.map(|line| line.replace('\u{a0}', " ")).collect()
        }
    };
    lines.join(&format!("\n{}", " ".repeat(indent))) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixtures::columns;

    #[test]
    fn a_fact_goes_on_below_itself() {
        let fact = |name: &str, text: &str| (name.to_owned(), text.to_owned(), Meaning::Plain);
        let all = [
            fact("  Problem", "CPU 20 is offline; CPU 21 is offline"),
            fact("", "and"),
        ];
        assert_eq!(
            facts(&all, columns(40)),
            "  Problem  CPU 20 is offline; CPU 21 is\n           offline\n           and\n"
        );
        let command = facts(&[fact("Fix", "see what is found by steliactl verify")], columns(35));
        assert_eq!(command, "Fix  see what is found by\n     steliactl verify\n");
    }

    #[test]
    fn the_fix_is_below_the_fact_and_nothing_controls_the_terminal() {
        let label = ("FAIL", Meaning::Broken);
        let fact = "one two three four five six seven";
        assert_eq!(
            stacked(label, "a\x1b", fact, "", "run it", columns(34)),
            "FAIL  a?: one two three four five\n      six seven\n      fix     run it\n"
        );
        assert_eq!(stacked(label, "a", "one", "", "", columns(80)), "FAIL  a: one\n");
    }
}
