//! Whether the ledger files are what was written, and who signed them.

use std::path::Path;

use serde::Serialize;
use stelia_ledger::day::DAY_US;
use stelia_ledger::verdict::{Fault, Verdict};

use super::account::{All, VmAccount};
use super::rows;
use super::source::Source;
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{Render, TextStyle, counted, now, paragraph, printable, properties};

/// The ledger files, below the root directory (systemd's `StateDirectory=` of the daemon).
const FILES: &str = "var/lib/stelia/ledger";

/// The public key with which a node signs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Key {
    /// Base64.
    pub key: String,
}

/// # Errors
/// The daemon does not answer, or has no key.
pub(super) async fn key(client: &Client) -> Result<Key, Failure> {
    let key = client.answer_in_time(client.manager().ledger_key()).await?;
    if key.is_empty() {
        return Err(Failure::Other(
            "this node has no key: its ledger is off or could not be opened (steliactl doctor)".to_owned(),
        ));
    }
    Ok(Key { key })
}

impl Render for Key {
    fn text(&self, _: TextStyle) -> String {
        printable(&self.key) + "\n"
    }
}

/// What checking showed, and against what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Proof {
    /// No fault, and every signature is good.
    good: bool,
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(skip)]
    keys: Keys,
}

/// Whose keys the signatures were compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// Those that the node itself has.
    Node,
    /// Those that the copy names, which whoever made it could have chosen.
    Copy,
    /// Those that were given.
    Given,
}

/// Whether nothing is wrong with any line or signature.
pub(super) fn is_good(verdict: &Verdict) -> bool {
    verdict.is_good() && verdict.heads.iter().all(|head| head.good)
}

impl Proof {
    pub(super) fn of(verdict: Verdict, keys: Keys) -> Self {
        Self {
            good: is_good(&verdict),
            verdict,
            keys,
        }
    }

    /// What verifies which entries, and which entries nothing verifies yet.
    fn verified(&self) -> [(&'static str, String); 2] {
        let verdict = &self.verdict;
        let own = if self.keys == Keys::Node { "this node's " } else { "" };
        let by_key = (verdict.vouched_seq, format!("{own}key {}", verdict.vouched_by));
        let by = [by_key, (verdict.compared_seq, "the expected entry".to_owned())];
        let by = by.iter().filter(|(seq, _)| *seq > 0);
        let by: Vec<String> = by.map(|(seq, by)| format!("{by}, up to entry {seq}")).collect();
        let (by, mut rest) = match verdict.vouched_seq.max(verdict.compared_seq) {
            0 => ("nothing".to_owned(), "all entries".to_owned()),
            seq if seq < verdict.last_seq => (by.join("; "), format!("entries {} to {}", seq + 1, verdict.last_seq)),
            _ => (by.join("; "), "none".to_owned()),
        };
        let days = verdict.days_without_head.as_slice();
        if let (Some(first), Some(last)) = (days.first(), days.last()) {
            rest += &format!("; days without a signature: {first} to {last}");
        }
        [("Verified by", by), ("Not verified", rest)]
    }

    /// Each fault of a line or a signature, with its place.
    fn faults(&self) -> Vec<String> {
        let place = |fault: &Fault| match (fault.segment.as_str(), fault.line) {
            ("", _) => String::new(),
            (file, 0) => format!("{file}: "),
            (file, line) => format!("{file}, line {line}: "),
        };
        let faults = self.verdict.faults.iter().map(|fault| place(fault) + &fault.text);
        let bad = self.verdict.heads.iter().filter(|head| !head.good);
        let bad = bad.map(|head| format!("the signature of {} is not valid", head.day));
        faults.chain(bad).collect()
    }
}

impl Render for Proof {
    fn text(&self, style: TextStyle) -> String {
        let verdict = &self.verdict;
        let (first, last) = (verdict.first_seq, verdict.last_seq);
        let entries = match verdict.entries {
            0 => "none".to_owned(),
            _ => format!(
                "{first} to {last}, {} UTC",
                rows::between(verdict.first_us, verdict.last_us)
            ),
        };
        let (count, last) = (verdict.heads.len(), verdict.heads.last());
        let signatures = last.map(|last| format!("{count}, last of {}, up to entry {}", last.day, last.seq));
        let (files, bytes) = (counted(verdict.segments, "file"), rows::grouped(verdict.bytes));
        let mut facts = vec![
            ("Ledger files", format!("{files}, {bytes} bytes")),
            ("Entries", entries),
            ("Last hash", verdict.hash.clone()),
            ("Keys", verdict.keys.join(", ")),
            ("Signatures", signatures.unwrap_or_else(|| "none yet".to_owned())),
        ];
        if verdict.newer_events > 0 {
            let newer = counted(verdict.newer_events, "event");
            facts.push(("Newer version", format!("{newer} that this version does not know")));
        }
        // If the files were changed, nothing verifies them.
        if self.good {
            facts.extend(self.verified());
        }
        let mut text = properties(facts, style);
        if style.legend && !self.good {
            text += "\n";
        }
        for fault in self.faults() {
            text += &paragraph(&format!("FAIL  {}", printable(&fault)), style);
        }
        if style.legend && self.good {
            text += match self.keys {
                Keys::Given => "",
                Keys::Node => {
                    "\nTo verify against a key kept elsewhere, copy the files and give --directory and --key.\n"
                }
                Keys::Copy => {
                    "\nNo key was given: the keys are those in the copy, which prove nothing.\n\
                     Fix: run 'steliactl ledger key' on the node and give its output as --key.\n"
                }
            };
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let is_modified = self.verdict.heads.iter().any(|head| !head.good)
            || self.verdict.faults.iter().any(|fault| !fault.segment.is_empty());
        match (self.faults().len() as u64, is_modified) {
            (0, _) => None,
            (faults, true) => Some(format!("the ledger was modified: {}", counted(faults, "fault"))),
            // What is missing is in no file.
            (_, false) => Some("no given key or entry verifies the ledger".to_owned()),
        }
    }
}

/// The ledger in a report on the node: whether it is what was written, and the accounts of the last 24 hours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    proof: Proof,
    /// Empty if a copy has faults.
    vms: Vec<VmAccount>,
}

/// Asks the daemon; without one the files below `root` are read, which only root may do.
///
/// # Errors
/// The daemon keeps no ledger or does not answer, or the files cannot be read.
pub(crate) async fn summary(client: Option<&Client>, root: &Path) -> Result<Summary, Failure> {
    let directory = root.join(FILES);
    let (source, keys) = match client {
        Some(client) => (Source::Daemon(client.clone()), Keys::Node),
        None => (Source::Copy(&directory), Keys::Copy),
    };
    let verdict = source.verdict().await?;
    let vms = if client.is_some() || is_good(&verdict) {
        source.all(now().saturating_sub(DAY_US), 0).await?
    } else {
        Vec::new()
    };
    let proof = Proof::of(verdict, keys);
    Ok(Summary { proof, vms })
}

impl Render for Summary {
    fn text(&self, style: TextStyle) -> String {
        let proof = self.proof.text(style);
        if self.vms.is_empty() {
            return proof;
        }
        format!("{proof}\nThe last 24 hours:\n{}", All(self.vms.clone()).text(style))
    }
}
