//! Causes that several VMs have: each is printed once, with the number of its VMs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::shared::daemon::{Pod, Wait, age, fold};
use crate::shared::output::{Meaning, TextStyle, paragraph, printable};

/// How many causes of single VMs an overview has; of one more, it has all.
pub(crate) const MAX_SINGLE: usize = 3;

/// The reasons that more than one VM has, in the order in which they come.
#[derive(Debug)]
pub(crate) struct SharedReasons<'a>(Vec<(Vec<&'a Pod>, (&'a str, Meaning))>);

impl<'a> SharedReasons<'a> {
    pub(crate) fn of(all: impl IntoIterator<Item = (&'a Pod, &'a str, Meaning)>) -> Self {
        let mut shared = folded(all);
        shared.retain(|(pods, _)| pods.len() > 1);
        Self(shared)
    }

    /// The place of its footnote, from 0; `None` where at most one VM has it.
    fn place(&self, reason: &str) -> Option<usize> {
        self.0.iter().position(|(_, (other, _))| *other == reason)
    }

    /// What a row of a table has for its causes, each with the words that the row has where no other VM has the cause: these words, then
    /// the numbers of footnotes in ascending order.
    pub(crate) fn row<'r>(&self, causes: impl IntoIterator<Item = (&'r str, String)>) -> String {
        let parts = causes.into_iter().map(|(cause, words)| match self.place(cause) {
            Some(place) => (Some(place), format!("[{}]", place + 1)),
            None => (None, words),
        });
        let mut parts: Vec<(Option<usize>, String)> = parts.collect();
        parts.sort_by_key(|(place, _)| *place);
        parts.into_iter().map(|(_, part)| part).collect::<Vec<_>>().join("; ")
    }

    /// The lines below a table: "[1] 200 VMs: …, for up to 3 h"; `now` is in microseconds since the epoch.
    pub(crate) fn footnotes<'w>(
        &self,
        waits: impl IntoIterator<Item = &'w Wait>,
        now: u64,
        style: TextStyle,
    ) -> String {
        let mut longest: BTreeMap<&str, u64> = BTreeMap::new();
        for (cause, since) in waits {
            let known = longest.entry(cause).or_insert(*since);
            *known = (*known).min(*since);
        }
        let notes = (1..).zip(&self.0).map(|(number, (pods, (reason, meaning)))| {
            let wait = longest
                .get(reason)
                .map(|since| format!(", for up to {}", age(*since, now)));
            let text = format!("[{number}] {} VMs: {reason}{}", pods.len(), wait.unwrap_or_default());
            painted(&text, *meaning, style)
        });
        let notes: String = notes.collect();
        if notes.is_empty() { notes } else { format!("\n{notes}") }
    }

    /// The lines above a table: "200 VMs: …".
    pub(crate) fn lines(&self, style: TextStyle) -> String {
        let lines = self.0.iter();
        let lines =
            lines.map(|(pods, (reason, meaning))| painted(&format!("{} VMs: {reason}", pods.len()), *meaning, style));
        lines.collect()
    }
}

/// The lines above a table on a terminal: each cause that several VMs have, with their number; then causes of single VMs, with their
/// names, and where the others are found. What degrades isolation comes first, then what most VMs have.
pub(crate) fn overview<'a>(all: impl IntoIterator<Item = (&'a Pod, &'a str, Meaning)>, style: TextStyle) -> String {
    let (mut shared, mut single): (Vec<_>, Vec<_>) = folded(all).into_iter().partition(|(pods, _)| pods.len() > 1);
    shared.sort_by_key(|(pods, (_, meaning))| (*meaning != Meaning::Broken, Reverse(pods.len())));
    single.sort_by_key(|(_, (_, meaning))| *meaning != Meaning::Broken);
    let shown = match single.len() {
        few if few <= MAX_SINGLE + 1 => few,
        _ => MAX_SINGLE,
    };
    let more = match single.len() - shown {
        0 => String::new(),
        more => {
            let text = format!("{more} more causes, each of one VM: steliactl list has them");
            painted(&text, Meaning::Plain, style)
        }
    };
    let shared = shared.iter();
    let shared =
        shared.map(|(pods, (reason, meaning))| painted(&format!("{} VMs: {reason}", pods.len()), *meaning, style));
    let single = single.iter().take(shown).flat_map(|(pods, (reason, meaning))| {
        let lines = pods.iter();
        lines.map(move |pod| painted(&format!("{pod}: {reason}"), *meaning, style))
    });
    shared.chain(single).chain([more]).collect()
}

fn folded<'a>(all: impl IntoIterator<Item = (&'a Pod, &'a str, Meaning)>) -> Vec<(Vec<&'a Pod>, (&'a str, Meaning))> {
    fold(all.into_iter().map(|(pod, reason, meaning)| (pod, (reason, meaning))))
}

/// The text on lines of the style's width.
fn painted(text: &str, meaning: Meaning, style: TextStyle) -> String {
    let text = paragraph(&printable(text), style);
    let lines = text.lines();
    lines.map(|line| meaning.paint(line, style) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKEN: Meaning = Meaning::Broken;

    #[test]
    fn a_reason_of_several_vms_is_a_number_and_another_is_itself() {
        let pods = ["a", "b", "c"].map(Pod::unnamed);
        let [a, b, c] = &pods;
        let all = [
            (a, "the file is empty", BROKEN),
            (b, "CPU 2 is offline", BROKEN),
            (c, "the file is empty", BROKEN),
        ];
        let shared = SharedReasons::of(all);
        let causes = ["the file is empty", "CPU 2 is offline"].map(|cause| (cause, cause.to_owned()));
        assert_eq!(shared.row(causes), "CPU 2 is offline; [1]");
        let style = TextStyle {
            width: Some(20),
            ..TextStyle::from(true)
        };
        assert_eq!(shared.footnotes([], 0, style), "\n[1] 2 VMs: the file\nis empty\n");
        let waits = [9, 5].map(|seconds| ("the file is empty".to_owned(), seconds * 1_000_000));
        let wide = TextStyle::from(true);
        assert_eq!(
            shared.footnotes(&waits, 605_000_000, wide),
            "\n[1] 2 VMs: the file is empty, for up to 10 min\n"
        );
        assert_eq!(shared.lines(TextStyle::from(true)), "2 VMs: the file is empty\n");
        let none = SharedReasons::of(all[..2].iter().copied());
        assert_eq!(
            (none.footnotes([], 0, style), none.lines(style)),
            (String::new(), String::new())
        );
    }

    #[test]
    fn an_overview_has_what_degrades_first_and_the_causes_of_single_vms_last() {
        let pods: Vec<Pod> = (0..9).map(|n| Pod::unnamed(&format!("vm-{n}"))).collect();
        let offline: Vec<String> = (0..9).map(|n| format!("degraded: CPUs {n} are offline")).collect();
        let mut all = vec![(&pods[8], "contained: class LSR", Meaning::Attention)];
        let floats = pods[..3].iter();
        all.extend(floats.map(|pod| (pod, "floats: vCPUs not attached", Meaning::Attention)));
        all.extend(pods[..2].iter().map(|pod| (pod, "degraded: the file is empty", BROKEN)));
        let singles = |count: usize| {
            let single = pods.iter().zip(&offline).take(count);
            single.map(|(pod, text)| (pod, text.as_str(), BROKEN))
        };
        let style = TextStyle {
            width: Some(80),
            coloured: true,
            ..TextStyle::from(true)
        };
        let text = overview(all.iter().copied().chain(singles(3)), style);
        let expected = [
            "\u{1b}[31m2 VMs: degraded: the file is empty\u{1b}[0m",
            "\u{1b}[33m3 VMs: floats: vCPUs not attached\u{1b}[0m",
            "\u{1b}[31mvm-0: degraded: CPUs 0 are offline\u{1b}[0m",
            "\u{1b}[31mvm-1: degraded: CPUs 1 are offline\u{1b}[0m",
            "\u{1b}[31mvm-2: degraded: CPUs 2 are offline\u{1b}[0m",
            "\u{1b}[33mvm-8: contained: class LSR\u{1b}[0m",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let text = overview(all.iter().copied().chain(singles(9)), style);
        assert!(
            text.ends_with("\n7 more causes, each of one VM: steliactl list has them\n") && !text.contains("vm-3"),
            "{text}"
        );
        assert_eq!(overview([], style), "");
    }
}
