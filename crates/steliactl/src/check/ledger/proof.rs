//! Whether the ledger files are what was written, and who signed them.

use serde::Serialize;
use stelia_ledger::account::grouped;
use stelia_ledger::verdict::Verdict;

use super::{Source, rows};
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{Render, TextStyle, counted, now, paragraph, printable, properties};

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
        // The daemon says why there is no ledger.
        Source::Daemon(client.clone()).all((now(), 0)).await?;
        return Err(Failure::Other("the ledger is not signed: steliactl doctor".to_owned()));
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
pub(crate) struct Proof {
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

impl Proof {
    pub(super) fn of(verdict: Verdict, keys: Keys) -> Self {
        let good = verdict.is_good();
        Self { good, verdict, keys }
    }

    /// By what the entries are verified, and which are not.
    fn verified(&self) -> Vec<(&'static str, String)> {
        let verdict = &self.verdict;
        let (key, seq) = (&verdict.vouched_by, verdict.vouched_seq);
        let by_key = (seq > 0).then(|| match self.keys {
            Keys::Node => format!("this node's key {key}, up to entry {seq}"),
            Keys::Copy | Keys::Given => format!("key {key}, up to entry {seq}"),
        });
        let compared = verdict.compared_seq;
        let by_entry = (compared > 0).then(|| format!("entry {compared} with the given hash"));
        let by: Vec<String> = by_key.into_iter().chain(by_entry).collect();
        let first = verdict.first_seq.max(seq.max(compared).saturating_add(1));
        let mut rest = if first <= verdict.last_seq {
            format!("entries {first} to {}", verdict.last_seq)
        } else {
            "none".to_owned()
        };
        if let [first, .., last] | [first @ last] = verdict.days_without_head.as_slice() {
            rest += &format!("; days without a signature: {first} to {last}");
        }
        let by = match self.keys {
            _ if !by.is_empty() => by.join("; "),
            Keys::Copy => "nothing, the keys are those that the copy names".to_owned(),
            Keys::Node | Keys::Given => "nothing".to_owned(),
        };
        vec![("Verified by", by), ("Not verified", rest)]
    }
}

impl Render for Proof {
    fn text(&self, style: TextStyle) -> String {
        let verdict = &self.verdict;
        let faults = verdict.faults.iter().map(|fault| format!("FAIL  {fault}"));
        let bad = verdict.heads.iter().filter(|head| !head.good);
        let faults = faults.chain(bad.map(|head| format!("FAIL  the signature of {} is not valid", head.day)));
        let faults: String = faults.map(|fault| paragraph(&printable(&fault), style)).collect();
        let (first, last) = (verdict.first_seq, verdict.last_seq);
        let entries = match verdict.entries {
            0 => "none".to_owned(),
            _ => format!(
                "{first} to {last}, {} UTC",
                rows::between(verdict.first_us, verdict.last_us)
            ),
        };
        let signatures = match verdict.heads.last() {
            None => "none yet".to_owned(),
            Some(last) => format!(
                "{}, last of {}, up to entry {}",
                verdict.heads.len(),
                last.day,
                last.seq
            ),
        };
        let files = format!(
            "{}, {} bytes",
            counted(verdict.segments, "file"),
            grouped(verdict.bytes)
        );
        let mut facts = vec![
            ("Ledger files", files),
            ("Entries", entries),
            ("Last hash", verdict.hash.clone()),
            ("Keys", verdict.keys.join(", ")),
            ("Signatures", signatures),
        ];
        if verdict.newer_events > 0 {
            let newer = counted(verdict.newer_events, "event");
            facts.push(("Newer version", format!("{newer} that this version does not know")));
        }
        // If the files were changed, nothing verifies them.
        if self.good {
            facts.extend(self.verified());
            if self.keys == Keys::Copy {
                facts.push((
                    "Fix",
                    "run steliactl ledger key on the node and give its output as --key".to_owned(),
                ));
            }
        }
        faults + &properties(facts, style)
    }

    fn failure(&self) -> Option<String> {
        let is_in_a_file = self.verdict.faults.iter().any(|fault| !fault.segment.is_empty());
        if self.good {
            None
        } else if is_in_a_file || self.verdict.heads.iter().any(|head| !head.good) {
            let faults = counted(self.verdict.faults.len().max(1) as u64, "fault");
            Some(format!("the ledger was modified: {faults}"))
        } else {
            // What is missing is in no file.
            Some("no given key or entry verifies the ledger".to_owned())
        }
    }
}
