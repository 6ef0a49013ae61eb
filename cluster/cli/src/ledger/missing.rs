//! What is not in the sums of an account, or may not be.

use std::collections::{BTreeMap, BTreeSet};

use stelia_table::{counted, printable};

use super::{Ledger, RingState, clock, hours};

/// How long before the period's end a ring may end, and how long after one ring of a node another may begin: three times the interval at
/// which a node with a ring of the usual size writes readings of all VMs.
const MAX_SILENCE_US: u64 = 3 * 3_600_000_000;
/// Limit of the notes of one kind that are printed one by one where they may be folded.
const MAX_NOTES: usize = 2;

/// What a note is about, in the order in which notes are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NoteKind {
    DaysWithout,
    NotCounted,
    NoEntry,
    CutOff,
    Between,
    /// Old entries have left the ring.
    BeginsLate,
    NoReadings,
    /// Two rings have a pod, and the one that is not counted has more times.
    Repeated,
    /// The ring of a node that has the VM ends before the period does.
    EndsEarly,
    /// The ring of another node does.
    OtherEndsEarly,
    /// Two rings have a pod, and nothing is missing.
    CountedOnce,
}

/// What is missing of the sums, or may be, or is counted once although two rings have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub kind: NoteKind,
    text: String,
    /// The ring or the pod that stands for several where notes are folded.
    place: String,
    /// Only notes with the same cause are folded.
    cause: String,
    /// The ring's last entry, or CPU time without readings.
    us: u64,
}

impl Note {
    fn new(kind: NoteKind, place: String, text: String) -> Self {
        Self {
            kind,
            text,
            place,
            cause: String::new(),
            us: 0,
        }
    }

    /// A ring and what is said of it.
    fn of_ring(kind: NoteKind, ring: &RingState, text: &str) -> Self {
        let place = place(&ring.node, &ring.directory);
        Self {
            us: ring.last_us,
            ..Self::new(kind, place.clone(), format!("{place}: {text}"))
        }
    }

    /// A line of text.
    fn line(kind: NoteKind, text: &str) -> String {
        match kind {
            NoteKind::CountedOnce => format!("Counted once: {text}"),
            _ => format!("Missing: {text}"),
        }
    }
}

/// The notes by kind.
pub(super) fn notes(ledger: &Ledger) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut by_node: BTreeMap<&str, Vec<&RingState>> = BTreeMap::new();
    for ring in &ledger.rings {
        match &ring.problem {
            Some(problem) => notes.push(Note {
                cause: problem.clone(),
                ..Note::of_ring(
                    NoteKind::NotCounted,
                    ring,
                    &format!("its ring is not counted: {problem}"),
                )
            }),
            // Numbers begin with 1.
            None if ring.first_seq == 0 => notes.push(Note::of_ring(NoteKind::NoEntry, ring, "its ring has no entry")),
            None => by_node.entry(&ring.node).or_default().push(ring),
        }
        if ring.is_cut_off {
            let text = "the last line of its ring is incomplete and not counted: copy it again";
            notes.push(Note::of_ring(NoteKind::CutOff, ring, text));
        }
    }
    let with_vm: BTreeSet<&str> = ledger.parts.iter().map(|part| part.node.as_str()).collect();
    for (node, rings) in by_node {
        let period = (ledger.since_us, ledger.until_us);
        notes.extend(of_node(rings, period, with_vm.contains(node)));
    }
    notes.extend(of_accounts(ledger));
    notes.sort_by_key(|note| note.kind);
    notes
}

/// What is missing, as sentences.
pub(super) fn sentences(notes: &[Note]) -> Vec<String> {
    let missing = notes.iter().filter(|note| note.kind != NoteKind::CountedOnce);
    missing.map(|note| note.text.clone()).collect()
}

/// The notes as lines of text. Where they are folded, a line stands for all of a kind if they are several, and the last line says who
/// lists them.
pub(super) fn lines(notes: &[Note], is_folded: bool) -> Vec<String> {
    if !is_folded {
        return notes.iter().map(|note| Note::line(note.kind, &note.text)).collect();
    }
    let mut groups: BTreeMap<(NoteKind, &str), Vec<&Note>> = BTreeMap::new();
    for note in notes {
        groups.entry((note.kind, note.cause.as_str())).or_default().push(note);
    }
    let (mut lines, mut is_any_folded) = (Vec::new(), false);
    for ((kind, cause), group) in groups {
        match summary(kind, cause, &group).filter(|_| group.len() > MAX_NOTES) {
            Some(summary) => {
                lines.push(Note::line(kind, &summary));
                is_any_folded = true;
            }
            None => lines.extend(group.iter().map(|note| Note::line(kind, &note.text))),
        }
    }
    if is_any_folded {
        lines.push("-o wide lists each of them.".to_owned());
    }
    lines
}

/// One sentence for several notes; `None` where each says something of its own.
fn summary(kind: NoteKind, cause: &str, group: &[&Note]) -> Option<String> {
    let count = group.len();
    let place = &group.first()?.place;
    let first = || clock(group.iter().map(|note| note.us).min().unwrap_or(0));
    Some(match kind {
        NoteKind::DaysWithout | NoteKind::Between => return None,
        NoteKind::NotCounted => format!("{count} rings, such as that of {place}, are not counted: {cause}"),
        NoteKind::NoEntry => format!("{count} rings, such as that of {place}, have no entry"),
        NoteKind::CutOff => format!(
            "the last lines of {count} rings, such as that of {place}, are incomplete and not counted: copy them again"
        ),
        NoteKind::BeginsLate => format!(
            "{count} rings, such as that of {place}, begin after the period does: their older entries have left them"
        ),
        NoteKind::NoReadings => format!(
            "{} CPU hours have no readings: those of {place} and of {} more rows",
            hours(group.iter().fold(0, |sum, note| sum.saturating_add(note.us))),
            count - 1
        ),
        NoteKind::Repeated => format!(
            "{count} times two rings have the same pod at the same times, such as {place}: one of them is counted, and \
             times that only the other one has are missing"
        ),
        NoteKind::CountedOnce => {
            format!(
                "{count} times two rings have the same pod at the same times, such as {place}: one of them is counted"
            )
        }
        NoteKind::EndsEarly => format!(
            "{count} rings of nodes that have the VM, such as {place}, end before the period does, the first of them at \
             {}: copy them again, unless no VM has run there since",
            first()
        ),
        NoteKind::OtherEndsEarly => format!(
            "{count} rings of other nodes, such as {place}, end before the period does, the first of them at {}: copy \
             them again, unless no VM has run there since",
            first()
        ),
    })
}

/// `worker-1 (rings/worker-1)`.
fn place(node: &str, directory: &str) -> String {
    format!("{} ({})", printable(node), printable(directory))
}

/// What is before, between and after the copies of one node's ring; and whether the node has the VM.
fn of_node(mut rings: Vec<&RingState>, (since_us, until_us): (u64, u64), has_vm: bool) -> Vec<Note> {
    let mut notes = Vec::new();
    rings.sort_by_key(|ring| ring.first_us);
    let mut copies = rings.into_iter();
    let Some(first) = copies.next() else { return notes };
    if first.first_us > since_us && first.first_seq > 1 {
        let text = format!("what was before {} has left its ring", clock(first.first_us));
        notes.push(Note::of_ring(NoteKind::BeginsLate, first, &text));
    }
    let mut last = first;
    for ring in copies {
        let silence = ring.first_us.saturating_sub(last.last_us);
        // Numbers that are left out prove a loss, however short the time was. Without one nothing was written between the copies, unless the
        // numbers begin anew.
        let lost = last.last_seq.saturating_add(1)..ring.first_seq;
        let begins_anew = ring.first_seq <= last.last_seq;
        let is_lost = !lost.is_empty() || (begins_anew && silence > MAX_SILENCE_US);
        if is_lost && ring.first_us > since_us && last.last_us < until_us {
            let numbers = match (lost.start, ring.first_seq.saturating_sub(1)) {
                _ if lost.is_empty() => String::new(),
                (first, end) if first == end => format!("entry {first} and "),
                (first, end) => format!("entries {first} to {end} and "),
            };
            let text = format!(
                "{numbers}{} hours from {} to {} are in no copy of its ring",
                hours(silence),
                clock(last.last_us),
                clock(ring.first_us)
            );
            notes.push(Note::of_ring(NoteKind::Between, ring, &text));
        }
        if ring.last_us >= last.last_us {
            last = ring;
        }
    }
    let silence = until_us.saturating_sub(last.last_us);
    if silence > MAX_SILENCE_US {
        let kind = if has_vm {
            NoteKind::EndsEarly
        } else {
            NoteKind::OtherEndsEarly
        };
        let text = format!(
            "its ring ends at {}, {} hours before the end of the period: copy it again, unless no VM has run there since",
            clock(last.last_us),
            hours(silence)
        );
        notes.push(Note::of_ring(kind, last, &text));
    }
    notes
}

fn of_accounts(ledger: &Ledger) -> Vec<Note> {
    let mut notes = Vec::new();
    for part in ledger.parts.iter().filter(|part| part.covered_us < part.promised_us) {
        let us = part.promised_us - part.covered_us;
        let text = format!(
            "{}: {} CPU hours of {} have no readings ({})",
            part.node,
            hours(us),
            part.pod,
            counted(part.gaps, "gap")
        );
        let place = format!("{} on {}", part.pod, part.node);
        notes.push(Note {
            us,
            ..Note::new(NoteKind::NoReadings, place, text)
        });
    }
    for twice in &ledger.repeated {
        let (kind, more) = if twice.has_more_times {
            (NoteKind::Repeated, ", and times that only the second has are missing")
        } else {
            (NoteKind::CountedOnce, "")
        };
        let places = format!(
            "{} and {}",
            place(&twice.counted, &twice.counted_directory),
            place(&twice.left_out, &twice.left_out_directory)
        );
        let part = ledger
            .parts
            .iter()
            .find(|part| part.pod_uid == twice.vm && !part.pod.is_empty());
        let pod = part.map_or_else(
            || printable(&twice.vm),
            |part| format!("{} ({})", part.pod, printable(&twice.vm)),
        );
        let text =
            format!("the rings of {places} have the same pod {pod} at the same times: the first is counted{more}");
        notes.push(Note::new(kind, format!("those of {places}"), text));
    }
    if let (Some(first), Some(last)) = (ledger.days_without.first(), ledger.days_without.last()) {
        let days = match ledger.days_without.len() {
            1 => first.clone(),
            several => format!("{} from {first} to {last}", counted(several as u64, "day")),
        };
        // One that is not counted may have it.
        let (ring, why) = if ledger.rings.iter().any(|ring| ring.problem.is_some()) {
            ("counted ring", ", or is not counted")
        } else {
            ("ring", "")
        };
        let text =
            format!("no {ring} has the VM on {days}: it did not run, or the ring of its node was not given{why}");
        notes.push(Note::new(NoteKind::DaysWithout, String::new(), text));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;
    /// 2026-10-01.
    const OCTOBER: u64 = 1_790_812_800_000_000;

    fn ring(seq: (u64, u64), hours: (u64, u64)) -> RingState {
        RingState {
            node: "n1".to_owned(),
            directory: "rings/n1".to_owned(),
            first_seq: seq.0,
            last_seq: seq.1,
            first_us: OCTOBER + hours.0 * HOUR,
            last_us: OCTOBER + hours.1 * HOUR,
            vouched_seq: 0,
            is_cut_off: false,
            problem: None,
        }
    }

    fn missing(rings: &[RingState]) -> Vec<String> {
        let period = (OCTOBER, OCTOBER + 100 * HOUR);
        sentences(&of_node(rings.iter().collect(), period, true))
    }

    #[test]
    fn the_copies_of_a_ring_are_looked_at_together() {
        // The latest copy says when the ring ends, the earliest when it begins, in whatever order they are given.
        let old = ring((1, 50), (0, 50));
        let new = ring((20, 98), (20, 98));
        assert!(missing(&[new.clone(), old.clone()]).is_empty());
        let begin = "n1 (rings/n1): what was before 2026-10-01 20:00 has left its ring";
        assert_eq!(missing(&[new]), [begin]);
        // The second lies within the first.
        assert!(missing(&[ring((1, 99), (0, 99)), ring((30, 40), (30, 40))]).is_empty());
        let between = "n1 (rings/n1): entries 51 to 59 and 10.0 hours from 2026-10-03 02:00 to 2026-10-03 12:00 are in no copy of its ring";
        assert_eq!(missing(&[old.clone(), ring((60, 99), (60, 99))]), [between]);
        // However short the time.
        let between = "n1 (rings/n1): entry 51 and 2.0 hours from 2026-10-03 02:00 to 2026-10-03 04:00 are in no copy of its ring";
        assert_eq!(missing(&[old.clone(), ring((52, 99), (52, 99))]), [between]);
        // Another ring of the node, whose numbers begin anew.
        assert!(missing(&[old.clone(), ring((1, 48), (52, 99))]).is_empty());
        let between = "n1 (rings/n1): 4.0 hours from 2026-10-03 02:00 to 2026-10-03 06:00 are in no copy of its ring";
        assert_eq!(missing(&[old.clone(), ring((1, 46), (54, 99))]), [between]);
        // No entry is between them.
        assert!(missing(&[old.clone(), ring((51, 99), (60, 99))]).is_empty());
        let [ends] = missing(&[old]).try_into().unwrap();
        assert!(
            ends.starts_with(
                "n1 (rings/n1): its ring ends at 2026-10-03 02:00, 50.0 hours before the end of the period: "
            ),
            "{ends}"
        );
    }

    /// Rings of nodes that end one after the other, the first of which has the VM.
    fn ends(count: u64) -> Vec<Note> {
        let ring = |number: u64| RingState {
            node: format!("n{number}"),
            ..ring((1, 9), (0, 10 + number))
        };
        let of = |number| of_node(vec![&ring(number)], (OCTOBER, OCTOBER + 100 * HOUR), number == 0);
        (0..count).flat_map(of).collect()
    }

    #[test]
    fn rings_that_end_early_share_a_line_on_a_terminal() {
        let lines_of = |count, is_folded| lines(&ends(count), is_folded);
        assert_eq!(lines_of(40, false).len(), 40);
        let [with_vm, others, hint] = lines_of(40, true).try_into().unwrap();
        assert!(
            with_vm.starts_with("Missing: n0 (rings/n1): its ring ends at 2026-10-01 10:00, "),
            "{with_vm}"
        );
        assert_eq!(
            others,
            "Missing: 39 rings of other nodes, such as n1 (rings/n1), end before the period does, the first of them at \
             2026-10-01 11:00: copy them again, unless no VM has run there since"
        );
        assert_eq!(hint, "-o wide lists each of them.");
        // Two are printed one by one.
        assert_eq!(lines_of(3, true), lines_of(3, false));
    }

    #[test]
    fn only_rings_with_the_same_cause_share_a_line() {
        let wrong = |cause: &str| Note {
            cause: cause.to_owned(),
            ..Note::new(NoteKind::NotCounted, "n1 (rings/n1)".to_owned(), format!("n1: {cause}"))
        };
        let notes = [wrong("changed"), wrong("key"), wrong("key"), wrong("key")];
        assert_eq!(
            lines(&notes, true),
            [
                "Missing: n1: changed",
                "Missing: 3 rings, such as that of n1 (rings/n1), are not counted: key",
                "-o wide lists each of them."
            ]
        );
        assert_eq!(lines(&notes, false).len(), 4);
    }
}
