//! Reasons that several VMs have: each is printed once, with the number of its VMs.

use crate::shared::daemon::{Pod, fold};
use crate::shared::output::{Meaning, TextStyle, paragraph, printable};

/// The reasons that more than one VM has, in the order in which they come.
#[derive(Debug)]
pub(crate) struct SharedReasons<'a>(Vec<(Vec<&'a Pod>, &'a str)>);

impl<'a> SharedReasons<'a> {
    pub(crate) fn of(all: impl IntoIterator<Item = (&'a Pod, &'a str)>) -> Self {
        let mut shared = fold(all);
        shared.retain(|(pods, _)| pods.len() > 1);
        Self(shared)
    }

    /// What a row of a table has for a reason: the number of a footnote, or the reason itself where only one VM has it.
    pub(crate) fn short(&self, reason: &str) -> String {
        match self.0.iter().position(|(_, other)| *other == reason) {
            Some(at) => format!("[{}]", at + 1),
            None => reason.to_owned(),
        }
    }

    /// The lines below a table: "[1] 200 VMs: …".
    pub(crate) fn footnotes(&self, style: TextStyle) -> String {
        let notes = (1..).zip(&self.0);
        let notes = notes.map(|(number, (pods, reason))| format!("[{number}] {} VMs: {reason}", pods.len()));
        let notes: String = notes.map(|note| painted(&note, style)).collect();
        match notes.is_empty() {
            true => notes,
            false => format!("\n{notes}"),
        }
    }

    /// The lines above a table: "200 VMs: …".
    pub(crate) fn lines(&self, style: TextStyle) -> String {
        let lines = self.0.iter();
        let lines = lines.map(|(pods, reason)| painted(&format!("{} VMs: {reason}", pods.len()), style));
        lines.collect()
    }
}

/// The text on lines of the style's width.
fn painted(text: &str, style: TextStyle) -> String {
    let text = paragraph(&printable(text), style);
    let lines = text.lines();
    lines.map(|line| Meaning::Broken.paint(line, style) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_several_vms_is_a_number_and_another_is_itself() {
        let pods = ["a", "b", "c"].map(Pod::unnamed);
        let [a, b, c] = &pods;
        let all = [
            (a, "the file is empty"),
            (b, "CPU 2 is offline"),
            (c, "the file is empty"),
        ];
        let shared = SharedReasons::of(all);
        assert_eq!(shared.short("the file is empty"), "[1]");
        assert_eq!(shared.short("CPU 2 is offline"), "CPU 2 is offline");
        let style = TextStyle {
            width: Some(20),
            ..TextStyle::from(true)
        };
        assert_eq!(shared.footnotes(style), "\n[1] 2 VMs: the file\nis empty\n");
        assert_eq!(shared.lines(TextStyle::from(true)), "2 VMs: the file is empty\n");
        let none = SharedReasons::of(all[..2].iter().copied());
        assert_eq!(
            (none.footnotes(style), none.lines(style)),
            (String::new(), String::new())
        );
    }
}
