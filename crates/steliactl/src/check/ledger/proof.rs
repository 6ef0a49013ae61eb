//! Whether the ring is what was written, and the key that says so.

use serde::Serialize;
use stelia_api::client::Dict;
use stelia_ledger::verdict::{Fault, Verdict};

use super::{query, words};
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{Column, Meaning, Render, TextStyle, column, counted, printable, properties, table};

/// The key that a node signs with.
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
        Err(Failure::Other(
            "this node has no key: its ledger is off, or could not be opened (steliactl doctor)".to_owned(),
        ))
    } else {
        Ok(Key { key })
    }
}

impl Render for Key {
    fn text(&self, _: TextStyle) -> String {
        printable(&self.key) + "\n"
    }
}

/// The daemon reads all of its ring.
pub(super) async fn online(client: &Client) -> Result<Verdict, Failure> {
    let text = client
        .answer_while_alive(client.manager().verify_ledger(Dict::new()))
        .await?;
    query::understood(&text)
}

/// What checking showed, and against what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Proof {
    /// No fault, and every head's signature is good.
    good: bool,
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(skip)]
    keys: Keys,
}

/// Whose keys the heads were compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Those that the node itself has.
    Node,
    /// None that is known: those that the copy names, which whoever made it could have chosen.
    Copy,
    /// Those that were given.
    Given,
}

pub(crate) const FAULTS: [Column<Fault>; 3] = [
    column("FILE", |fault: &Fault| fault.segment.clone()),
    column("LINE", |fault: &Fault| match fault.line {
        0 => String::new(),
        line => line.to_string(),
    })
    .right(),
    column("FAULT", |fault: &Fault| fault.text.clone())
        .yields(1)
        .means(|_| Meaning::Broken),
];

impl Proof {
    pub(super) fn of(verdict: Verdict, is_copy: bool, without_keys: bool) -> Self {
        Self {
            good: is_good(&verdict),
            keys: match (is_copy, without_keys) {
                (false, _) => Keys::Node,
                (true, true) => Keys::Copy,
                (true, false) => Keys::Given,
            },
            verdict,
        }
    }

    /// The entries that a signature or a given hash vouches for, and those that nothing vouches for yet.
    fn vouched(&self) -> [(&'static str, String); 2] {
        let verdict = &self.verdict;
        let whose = match self.keys {
            Keys::Node => "the node's own key",
            Keys::Copy | Keys::Given => "the key",
        };
        let by_key = match (self.keys, verdict.vouched_seq) {
            (Keys::Copy, _) | (_, 0) => None,
            (_, seq) => Some((seq, format!("{whose} {}", verdict.vouched_by))),
        };
        let by_entry = Some(verdict.compared_seq).filter(|seq| *seq > 0);
        let by_entry = by_entry.map(|seq| (seq, "the entry that is known".to_owned()));
        let all: Vec<(u64, String)> = by_key.into_iter().chain(by_entry).collect();
        let most = all.iter().map(|(seq, _)| *seq).max();
        let vouched = all.iter().map(|(seq, by)| format!("up to entry {seq} by {by}"));
        let vouched = match most {
            None => "nobody vouches for any entry".to_owned(),
            Some(_) => vouched.collect::<Vec<_>>().join(", "),
        };
        let days = verdict.days_without_head.as_slice();
        let mut rest = match most {
            Some(seq) if seq < verdict.last_seq => format!("entries {} to {}", seq + 1, verdict.last_seq),
            Some(_) => "none".to_owned(),
            None => "all".to_owned(),
        };
        if let (Some(first), Some(last)) = (days.first(), days.last()) {
            rest += &format!("; days that ended without a head: {first} to {last}");
        }
        [("Vouched for", vouched), ("Not vouched for", rest)]
    }

    fn bad_heads(&self) -> Vec<&str> {
        let bad = self.verdict.heads.iter().filter(|head| !head.good);
        bad.map(|head| head.day.as_str()).collect()
    }
}

/// Whether nothing is wrong with any line or signature.
pub(super) fn is_good(verdict: &Verdict) -> bool {
    verdict.is_good() && verdict.heads.iter().all(|head| head.good)
}

impl Render for Proof {
    fn text(&self, style: TextStyle) -> String {
        let verdict = &self.verdict;
        let heads = match verdict.heads.last() {
            None => "none yet".to_owned(),
            Some(last) => format!(
                "{}, the last of {} up to entry {}",
                verdict.heads.len(),
                last.day,
                last.seq
            ),
        };
        let rows = [
            (
                "Ring",
                format!(
                    "{}, {} bytes",
                    counted(verdict.segments, "file"),
                    words::grouped(verdict.bytes)
                ),
            ),
            (
                "Entries",
                match verdict.entries {
                    0 => "none".to_owned(),
                    _ => format!(
                        "{} to {}, {} to {} UTC",
                        verdict.first_seq,
                        verdict.last_seq,
                        words::clock(verdict.first_us),
                        words::clock(verdict.last_us)
                    ),
                },
            ),
            ("Last hash", verdict.hash.clone()),
            ("Keys", verdict.keys.join(", ")),
            ("Signed heads", heads),
        ];
        let newer = match verdict.newer_events {
            0 => None,
            1 => Some("1 event, which this version does not know".to_owned()),
            count => Some(format!("{count} events, which this version does not know")),
        };
        let rows = rows.into_iter().chain(newer.map(|text| ("Of a newer version", text)));
        // If the ring was changed, nothing else is reported.
        let vouched = if self.good { self.vouched().to_vec() } else { Vec::new() };
        let rows = rows.chain(vouched);
        let mut text = properties(rows, style);
        if !verdict.faults.is_empty() {
            text += "\n";
            text += &table(&FAULTS, &verdict.faults, style);
        }
        let bad = self.bad_heads();
        if !bad.is_empty() {
            text += &format!("\nHeads that are not good: {}\n", printable(&bad.join(", ")));
        }
        if style.legend && self.good {
            text += match verdict.entries {
                0 => "\nThe ring is empty.\n",
                _ => "\nEvery line is what was written, as far as chain and signatures show.\n",
            };
            text += match self.keys {
                Keys::Given => "",
                Keys::Node => {
                    "The node's own key is compared with itself: whoever has the key elsewhere, as `steliactl ledger key` printed it, checks a copy with --key.\n"
                }
                Keys::Copy => {
                    "No key was given, so nobody vouches for this copy: the keys are those that it names itself. Give what `steliactl ledger key` printed on the \
                     node as --key.\n"
                }
            };
        }
        text
    }

    fn failure(&self) -> Option<String> {
        // A bad head is a fault too.
        let what = match (self.verdict.faults.len() as u64, self.bad_heads().len() as u64) {
            (0, 0) => return None,
            (0, heads) => counted(heads, "head") + " not signed by a known key",
            // What is missing is in no file.
            (1, _) if self.verdict.faults.iter().all(|fault| fault.segment.is_empty()) => {
                let text = self.verdict.faults.first().map(|fault| fault.text.as_str());
                return Some(format!(
                    "the ring is not proved: {}",
                    printable(text.unwrap_or_default())
                ));
            }
            (faults, _) => counted(faults, "fault"),
        };
        Some(format!("the ring is not what was written: {what}"))
    }
}
