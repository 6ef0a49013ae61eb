//! `docs/first-vm.md`: each `sh` block of `steliactl` with a `text` block behind it, in a section named after an example, shows what
//! was seen of that example's pod. What is seen is written to `$NODE_RESULTS/first-vm.md`, the page as it should be.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::*;

pub struct Page {
    shown: String,
    seen: String,
}

impl Page {
    pub fn read() -> Self {
        let shown = read(beside("first-vm.md")) + "\n";
        Self {
            seen: shown.clone(),
            shown,
        }
    }

    /// Run what the section of this pod's example shows.
    pub fn hold(&mut self, pod: &Pod) {
        let beginning = format!("\n## `{}.yaml`", pod.name);
        let Some(at) = self.seen.find(&beginning) else { return };
        let end = self.seen[at + 1..].find("\n## ");
        let end = end.map_or(self.seen.len(), |end| at + 1 + end);
        let section = self.seen[at..end].to_owned();
        let mut written = String::new();
        let mut said = None;
        for (number, block) in section.split("\n```").enumerate() {
            let body = match (number % 2 == 1, block.split_once('\n').unwrap_or((block, ""))) {
                (true, ("sh", lines)) if lines.contains("steliactl ") => {
                    let lines = lines.lines().filter(|line| line.starts_with("steliactl "));
                    said = Some(lines.map(|line| shell(line, pod)).collect::<String>());
                    block.to_owned()
                }
                (true, ("text", _)) => match said.take() {
                    Some(said) => format!("text\n{}", said.trim_end()),
                    None => block.to_owned(),
                },
                _ => block.to_owned(),
            };
            written += if number == 0 { "" } else { "\n```" };
            written += &body;
        }
        self.seen.replace_range(at..end, &written);
    }

    pub fn assert_as_seen(&self) {
        let results = std::env::var("NODE_RESULTS").expect("NODE_RESULTS");
        put(Path::new(&results).join("first-vm.md"), &self.seen);
        let (shown, seen) = (comparable(&self.shown), comparable(&self.seen));
        let less = shown.iter().filter(|line| !seen.contains(line));
        let more = seen.iter().filter(|line| !shown.contains(line));
        let less = less.map(|line| format!("\n- {line}"));
        let differ: String = less.chain(more.map(|line| format!("\n+ {line}"))).collect();
        let advice = "docs/first-vm.md is not what was seen: cp target/node/last/results/first-vm.md docs/";
        assert!(differ.is_empty(), "{advice}{differ}");
    }
}

fn shell(line: &str, pod: &Pod) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).env("POD", &pod.uid).stdin(Stdio::null());
    let out = shell.output().expect("sh");
    assert!(out.status.success(), "{line}: {out:?}");
    String::from_utf8(out.stdout).expect("UTF-8")
}

/// Lines without what differs between runs: identifiers, times, sizes, the width of columns, QEMU's threads for its disk.
fn comparable(page: &str) -> Vec<String> {
    let has_digits = |word: &str, at_least: usize| word.bytes().filter(u8::is_ascii_digit).count() >= at_least;
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kept = |number: usize| {
            let word = words[number];
            let before = words.get(number + 1).copied().unwrap_or_default();
            let measured = ["B", "KiB", "MiB", "GiB", "%", "in"]
                .iter()
                .any(|unit| before.starts_with(unit));
            let is_unit = ["B", "KiB", "MiB", "GiB"].iter().any(|unit| word.starts_with(unit));
            let is_time = word.ends_with('s') && has_digits(word, 1);
            if is_unit || is_time || has_digits(word, 3) || measured && has_digits(word, 1) {
                "…"
            } else {
                word
            }
        };
        (0..words.len()).map(kept).collect::<Vec<_>>().join(" ")
    };
    page.lines()
        .filter(|line| !line.contains(" worker "))
        // Whether the ledger has read twice yet depends on the node's pace.
        .filter(|line| *line != "The last 24 hours by the ledger:" && !line.ends_with("% covered"))
        .map(line)
        .collect()
}
