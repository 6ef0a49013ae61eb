//! Notes on what an account's sums lack, or may lack.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::text::named;
use stelia_ledger::account::TimeWithout;
use stelia_ledger::day::HOUR_US;
use stelia_table::{counted, printable};

use super::{Ledger, RingCopy, clock, hours};
use crate::reasons::Refusal;

/// How long before the period's end a ring may end, and how long after one ring of a node another may begin: three times the interval at
/// which a node with a ring of the usual size writes readings of all VMs.
const MAX_SILENCE_US: u64 = 3 * HOUR_US;

named! {
    /// What a note is about, in the order in which notes are printed.
    #[derive(PartialOrd, Ord)]
    pub(super) enum NoteKind {
        HoursWithout = "no ring has the VM: it did not run, or the ring of its node was not given",
        NotCounted = "its ring is not counted",
        NoEntry = "its ring has no entry",
        CutOff = "the last line of its ring is incomplete and not counted: copy it again",
        Between = "entries are in no copy of its ring",
        BeginsLate = "older entries have left its ring",
        NoReadings = "CPU hours have no readings",
        Repeated = "its pod is in another ring at the same times and counted there; other times are missing",
        /// The ring of a node that has the VM.
        EndsEarly = "its ring ends before the period: copy it again, unless no VM has run there since",
        OtherEndsEarly = "its ring, without the VM, ends before the period: copy it again, unless no VM has run there since",
        /// Nothing is missing.
        CountedOnce = "its pod is in another ring at the same times and counted there",
    }
}

/// What is missing of the sums, or may be, or is counted once although two rings have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    kind: NoteKind,
    /// The ring, as `worker-1 (rings/worker-1)`, or the hours that no ring has.
    pub place: String,
    pub reason: Refusal,
}

impl Note {
    fn new(kind: NoteKind, place: String, detail: impl Into<String>) -> Self {
        Self {
            kind,
            place,
            reason: Refusal::new(kind.name(), detail),
        }
    }

    fn of_ring(kind: NoteKind, ring: &RingCopy, detail: impl Into<String>) -> Self {
        Self::new(kind, place(&ring.node, &ring.directory.display().to_string()), detail)
    }

    fn sentence(&self) -> String {
        let Refusal { what, detail } = &self.reason;
        match detail.as_str() {
            "" => format!("{}: {what}", self.place),
            detail => format!("{}: {what}: {detail}", self.place),
        }
    }
}

/// The notes by kind.
pub(super) fn notes(ledger: &Ledger) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut by_node: BTreeMap<&str, Vec<&RingCopy>> = BTreeMap::new();
    for ring in &ledger.rings {
        match &ring.problem {
            Some(problem) => notes.push(Note::of_ring(NoteKind::NotCounted, ring, problem)),
            // Numbers begin with 1.
            None if ring.verdict.first_seq == 0 => notes.push(Note::of_ring(NoteKind::NoEntry, ring, "")),
            None => by_node.entry(&ring.node).or_default().push(ring),
        }
        notes.extend(ring.is_cut_off.then(|| Note::of_ring(NoteKind::CutOff, ring, "")));
    }
    let with_vm: BTreeSet<&str> = ledger.merged.parts.iter().map(|part| part.node.as_str()).collect();
    for (node, rings) in by_node {
        let period = (ledger.since_us, ledger.until_us);
        notes.extend(of_node(rings, period, with_vm.contains(node)));
    }
    notes.extend(of_accounts(ledger));
    notes.sort_by_key(|note| note.kind);
    notes
}

/// What is missing, as sentences.
pub(super) fn sentences(ledger: &Ledger) -> Vec<String> {
    let notes = notes(ledger).into_iter();
    let missing = notes.filter(|note| note.kind != NoteKind::CountedOnce);
    missing.map(|note| note.sentence()).collect()
}

fn place(node: &str, directory: &str) -> String {
    format!("{} ({})", printable(node), printable(directory))
}

/// What is before, between and after the copies of one node's ring; and whether the node has the VM.
fn of_node(mut rings: Vec<&RingCopy>, (since_us, until_us): (u64, u64), has_vm: bool) -> Vec<Note> {
    let mut notes = Vec::new();
    rings.sort_by_key(|ring| ring.verdict.first_us);
    let mut copies = rings.into_iter();
    let Some(first) = copies.next() else { return notes };
    if first.verdict.first_us > since_us && first.verdict.first_seq > 1 {
        let begin = format!("it begins at {}", clock(first.verdict.first_us));
        notes.push(Note::of_ring(NoteKind::BeginsLate, first, begin));
    }
    let mut last = first;
    for ring in copies {
        let (before, after) = (&last.verdict, &ring.verdict);
        let silence = after.first_us.saturating_sub(before.last_us);
        // Numbers that are left out prove a loss, however short the time was. Without one nothing was written between the copies, unless the
        // numbers begin anew.
        let lost = before.last_seq.saturating_add(1)..after.first_seq;
        let begins_anew = after.first_seq <= before.last_seq;
        let is_lost = !lost.is_empty() || (begins_anew && silence > MAX_SILENCE_US);
        if is_lost && after.first_us > since_us && before.last_us < until_us {
            let numbers = (!lost.is_empty()).then(|| format!("{} to {}, ", lost.start, lost.end - 1));
            let numbers = numbers.unwrap_or_default();
            let (from, until) = (clock(before.last_us), clock(after.first_us));
            let detail = format!("{numbers}{} hours from {from} to {until}", hours(silence));
            notes.push(Note::of_ring(NoteKind::Between, ring, detail));
        }
        if after.last_us >= before.last_us {
            last = ring;
        }
    }
    let silence = until_us.saturating_sub(last.verdict.last_us);
    if silence > MAX_SILENCE_US {
        let kind = if has_vm {
            NoteKind::EndsEarly
        } else {
            NoteKind::OtherEndsEarly
        };
        let (end, silence) = (clock(last.verdict.last_us), hours(silence));
        let detail = format!("at {end}, {silence} hours before its end");
        notes.push(Note::of_ring(kind, last, detail));
    }
    notes
}

fn of_accounts(ledger: &Ledger) -> Vec<Note> {
    let mut notes = Vec::new();
    let merged = &ledger.merged;
    for part in &merged.parts {
        let account = &part.account;
        let us = account.promised_us.saturating_sub(account.covered_us);
        if us == 0 {
            continue;
        }
        let gaps = counted((account.gaps.len() as u64).saturating_add(account.gaps_left_out), "gap");
        let detail = format!("{} of {} ({gaps})", hours(us), printable(&account.name));
        let place = place(&part.node, &part.directory);
        notes.push(Note::new(NoteKind::NoReadings, place, detail));
    }
    for twice in &merged.repeated {
        let kind = if twice.has_more_times {
            NoteKind::Repeated
        } else {
            NoteKind::CountedOnce
        };
        let counted = place(&twice.counted, &twice.counted_directory);
        let detail = format!("pod {} of {counted}", printable(&twice.vm));
        let place = place(&twice.left_out, &twice.left_out_directory);
        notes.push(Note::new(kind, place, detail));
    }
    // What began just before the period's end may only not be written yet.
    let is_sure = |time: &&TimeWithout| time.from_us.saturating_add(MAX_SILENCE_US) <= ledger.until_us;
    let without: Vec<&TimeWithout> = merged.without.iter().filter(is_sure).collect();
    if let (Some(first), Some(last)) = (without.first(), without.last()) {
        let lasts = |time: &&TimeWithout| time.until_us.min(ledger.until_us).saturating_sub(time.from_us);
        let sum = without.iter().map(lasts).fold(0, u64::saturating_add);
        let times = match without.len() {
            1 => String::new(),
            several => format!(" in {}", counted(several as u64, "time")),
        };
        let (from, until) = (clock(first.from_us), clock(last.until_us.min(ledger.until_us)));
        let hours = format!("{} from {from} to {until}{times}", counted(sum / HOUR_US, "hour"));
        let is_any_wrong = ledger.rings.iter().any(|ring| ring.problem.is_some());
        let why = is_any_wrong.then_some("a ring that is not counted may have it");
        notes.push(Note::new(NoteKind::HoursWithout, hours, why.unwrap_or_default()));
    }
    notes
}
