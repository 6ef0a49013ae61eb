//! Stacked lines: a label with a text beside it, which goes on below itself where it is longer than the terminal is wide.

use super::{Column, Meaning, TextStyle, column, columns, printable, shorten, table};

/// A path that is longer is shortened on a terminal.
const MAX_PATH_WIDTH: usize = 44;

/// A name, what it says, and what that means.
pub(crate) type Fact = (String, String, Meaning);

const FACTS: [Column<Fact>; 2] = [
    column("", |(name, ..): &Fact| name.clone()).means(|(.., meaning)| *meaning),
    column("", |(_, text, _): &Fact| text.clone()).wraps(),
];

/// Facts, one below the other. On a terminal long paths lose their middle, and no line ends behind the word "steliactl".
pub(crate) fn facts(facts: &[Fact], style: TextStyle) -> String {
    let widest = facts.iter().map(|(name, ..)| columns(name)).max().unwrap_or(0);
    let word = |word: &str| match style.width {
        Some(_) if word.starts_with('/') => shorten(word, MAX_PATH_WIDTH),
        _ => word.to_owned(),
    };
    let rows = facts.iter().map(|(name, text, meaning)| {
        let words: Vec<String> = printable(text).split(' ').map(word).collect();
        let blanks = " ".repeat(widest.saturating_sub(columns(name)));
        let text = words.join(" ").replace("steliactl ", "steliactl\u{a0}");
        (format!("{name}{blanks}"), text, *meaning)
    });
    let style = TextStyle {
        legend: false,
        wide: false,
        ..style
    };
    table(&FACTS, &rows.collect::<Vec<_>>(), style).replace('\u{a0}', " ")
}

/// A finding: its label, whom it is about and the fact; below these what follows and what to do, a line each, unless empty.
pub(crate) fn stacked(
    (label, meaning): (&str, Meaning),
    subject: &str,
    fact: &str,
    effect: &str,
    fix: &str,
    style: TextStyle,
) -> String {
    let row = |label: String, text: &str, meaning| facts(&[(label, text.to_owned(), meaning)], style);
    let labels = ["effect", "fix"].into_iter().chain(std::iter::repeat(""));
    let effects = if effect.is_empty() { [].as_slice() } else { &[effect] };
    let below = labels
        .skip(1 - effects.len())
        .zip(effects.iter().copied().chain(fix.lines()));
    let below = below.map(|(label, text)| row(format!("      {label:<6}"), text, Meaning::Plain));
    row(format!("{label:<4}"), &format!("{subject}: {fact}"), meaning) + &below.collect::<String>()
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
