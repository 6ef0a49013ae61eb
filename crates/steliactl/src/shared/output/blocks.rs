//! Stacked lines: a label with a text beside it, which goes on below itself where it is longer than the terminal is wide.

use super::{Column, Meaning, TextStyle, column, columns, printable, table};

/// A name, what it says, and what that means.
pub(crate) type Fact = (String, String, Meaning);

const FACTS: [Column<Fact>; 2] = [
    column("", |(name, ..): &Fact| name.clone()).means(|(.., meaning)| *meaning),
    column("", |(_, text, _): &Fact| text.clone()).wraps(),
];

/// Facts, one below the other. No line ends behind the word "steliactl".
pub(crate) fn facts(facts: &[Fact], style: TextStyle) -> String {
    let widest = facts.iter().map(|(name, ..)| columns(name)).max().unwrap_or(0);
    let rows = facts.iter().map(|(name, text, meaning)| {
        let blanks = " ".repeat(widest.saturating_sub(columns(name)));
        let text = printable(text).replace("steliactl ", "steliactl\u{a0}");
        (format!("{name}{blanks}"), text, *meaning)
    });
    let style = TextStyle {
        legend: false,
        wide: false,
        ..style
    };
    table(&FACTS, &rows.collect::<Vec<_>>(), style).replace('\u{a0}', " ")
}

pub(crate) const FAIL: (&str, Meaning) = ("FAIL", Meaning::Broken);
pub(crate) const NOTE: (&str, Meaning) = ("NOTE", Meaning::Attention);

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Of four letters.
    pub label: (&'static str, Meaning),
    /// What it is about.
    pub subject: String,
    pub fact: String,
    /// What follows; empty where the fact says it.
    pub effect: &'static str,
    /// What to do, a line each; empty where there is nothing to do.
    pub fix: String,
}

impl Block {
    pub(crate) fn new(
        label: (&'static str, Meaning),
        subject: impl Into<String>,
        fact: impl Into<String>,
        effect: &'static str,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            label,
            subject: subject.into(),
            fact: fact.into(),
            effect,
            fix: fix.into(),
        }
    }

    /// The label with subject and fact; below these what follows and what to do.
    pub(crate) fn text(&self, style: TextStyle) -> String {
        let row = |label: String, text: &str, meaning| facts(&[(label, text.to_owned(), meaning)], style);
        let (label, meaning) = self.label;
        let mut text = row(label.to_owned(), &format!("{}: {}", self.subject, self.fact), meaning);
        let fixes = std::iter::once("fix")
            .chain(std::iter::repeat(""))
            .zip(self.fix.lines());
        let effect = Some(("effect", self.effect)).filter(|(_, effect)| !effect.is_empty());
        let below = effect.into_iter().chain(fixes);
        text.extend(below.map(|(label, line)| row(format!("      {label:<6}"), line, Meaning::Plain)));
        text
    }
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
        let block = |fact, fix| Block::new(FAIL, "a\x1b", fact, "", fix);
        assert_eq!(
            block("one two three four five six seven", "run it").text(columns(34)),
            "FAIL  a?: one two three four five\n      six seven\n      fix     run it\n"
        );
        assert_eq!(block("one", "").text(columns(80)), "FAIL  a?: one\n");
    }
}
