//! Whether the ledger files are what was written, and who signed them.

use serde::Serialize;
use stelia_ledger::account::grouped;
use stelia_ledger::verdict::Verdict;

use super::{LedgerReader, rows};
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{Render, TextStyle, counted, now, paragraph, printable, properties};

/// The public key with which a node signs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Key {
    /// Base64.
    pub key: String,
}

impl Key {
    /// # Errors
    /// The daemon does not answer, or has no key.
    pub(super) async fn of(client: &Client) -> Result<Self, Failure> {
        let mut key = client.answer_in_time(client.manager().ledger_key()).await?;
        if key.is_empty() {
            // The daemon says why there is no ledger, and opens one that was not open yet.
            LedgerReader::Daemon(client.clone()).all((now(), 0)).await?;
            key = client.answer_in_time(client.manager().ledger_key()).await?;
        }
        let unsigned = || Failure::Other("the ledger is not signed: steliactl doctor".to_owned());
        (!key.is_empty()).then_some(Self { key }).ok_or_else(unsigned)
    }
}

impl Render for Key {
    fn text(&self, _: TextStyle) -> String {
        printable(&self.key) + "\n"
    }
}

/// What checking showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Verification(pub(super) Verdict);

/// "1 fault".
pub(super) fn faults(verdict: &Verdict) -> String {
    counted(verdict.faults.len().max(1) as u64, "fault")
}

/// By what the entries are verified, which are not, and what to do about that. If the files were changed, nothing verifies them.
fn verified(verdict: &Verdict) -> [String; 3] {
    let (key, seq, compared) = (&verdict.vouched_by, verdict.vouched_seq, verdict.compared_seq);
    if !verdict.is_good() {
        return Default::default();
    }
    let by_key = (seq > 0).then(|| format!("key {key}, up to entry {seq}"));
    let by_entry = (compared > 0).then(|| format!("entry {compared} with the given hash"));
    let by: Vec<String> = by_key.into_iter().chain(by_entry).collect();
    let first = verdict.first_seq.max(seq.max(compared).saturating_add(1));
    let mut rest = match verdict.last_seq {
        last if first <= last => format!("entries {first} to {last}"),
        _ => "none".to_owned(),
    };
    if let [first, .., last] | [first @ last] = verdict.days_without_head.as_slice() {
        rest += &format!("; days without a signature: {first} to {last}");
    }
    let (by, fix) = match (by.is_empty(), verdict.heads.is_empty()) {
        (false, _) => (by.join("; "), ""),
        (true, true) => ("nothing".to_owned(), ""),
        // With a key signatures that it did not make are faults.
        (true, false) => (
            "nothing, the keys are those that the copy names".to_owned(),
            "run steliactl ledger key on the node and give its output as --key",
        ),
    };
    [by, rest, fix.to_owned()]
}

impl Render for Verification {
    fn text(&self, style: TextStyle) -> String {
        let verdict = &self.0;
        let faults = verdict.faults.iter();
        let faults = faults.map(|fault| paragraph(&printable(&format!("FAIL  {fault}")), style));
        let time = rows::between(verdict.first_us, verdict.last_us);
        let entries = match (verdict.entries, verdict.first_seq, verdict.last_seq) {
            (0, ..) => "none".to_owned(),
            (_, first, last) => format!("{first} to {last}, {time} UTC"),
        };
        let signatures = match (verdict.heads.len(), verdict.heads.last()) {
            (_, None) => "none yet".to_owned(),
            (count, Some(last)) => format!("{count}, last of {}, up to entry {}", last.day, last.seq),
        };
        let newer = match verdict.newer_events {
            0 => String::new(),
            events => format!("{} that this version does not know", counted(events, "event")),
        };
        let (files, bytes) = (counted(verdict.segments, "file"), grouped(verdict.bytes));
        let [by, rest, fix] = verified(verdict);
        let mut facts = vec![
            ("Ledger files", format!("{files}, {bytes} bytes")),
            ("Entries", entries),
            ("Last hash", verdict.hash.clone()),
            ("Keys", verdict.keys.join(", ")),
            ("Signatures", signatures),
            ("Newer version", newer),
            ("Verified by", by),
            ("Not verified", rest),
            ("Fix", fix),
        ];
        facts.retain(|(_, fact)| !fact.is_empty());
        faults.collect::<String>() + &properties(facts, style)
    }

    fn failure(&self) -> Option<String> {
        let is_in_a_file = self.0.faults.iter().any(|fault| !fault.segment.is_empty());
        if self.0.is_good() {
            None
        } else if is_in_a_file || self.0.heads.iter().any(|head| !head.good) {
            Some(format!("the ledger was modified: {}", faults(&self.0)))
        } else {
            // What is missing is in no file.
            Some("no given key or entry verifies the ledger".to_owned())
        }
    }
}
