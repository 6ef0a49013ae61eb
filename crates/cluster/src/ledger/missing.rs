//! What is not in the sums of an account, or may not be.

use std::collections::BTreeMap;

use stelia_table::{counted, printable};

use super::{Ledger, RingState, clock, hours};

/// How long before the period's end a ring may end, and how long after one ring of a node another may begin: three times the interval at
/// which a node with a ring of the usual size writes readings of all VMs.
const MAX_SILENCE_US: u64 = 3 * 3_600_000_000;

/// As sentences.
pub(super) fn of(ledger: &Ledger) -> Vec<String> {
    let mut missing = Vec::new();
    let mut by_node: BTreeMap<&str, Vec<&RingState>> = BTreeMap::new();
    for ring in &ledger.rings {
        match &ring.problem {
            Some(problem) => missing.push(format!("{}: its ring is not counted: {problem}", place(ring))),
            // Numbers begin with 1.
            None if ring.first_seq == 0 => missing.push(format!("{}: its ring has no entry", place(ring))),
            None => by_node.entry(&ring.node).or_default().push(ring),
        }
        if ring.is_cut_off {
            missing.push(format!(
                "{}: the last line of its ring is incomplete and not counted: copy it again",
                place(ring)
            ));
        }
    }
    for rings in by_node.into_values() {
        missing.extend(of_node(rings, ledger.since_us, ledger.until_us));
    }
    missing.extend(of_accounts(ledger));
    missing
}

/// `worker-1 (rings/worker-1)`.
fn place(ring: &RingState) -> String {
    format!("{} ({})", printable(&ring.node), printable(&ring.directory))
}

/// What is before, between and after the copies of one node's ring.
fn of_node(mut rings: Vec<&RingState>, since_us: u64, until_us: u64) -> Vec<String> {
    let mut missing = Vec::new();
    rings.sort_by_key(|ring| ring.first_us);
    let mut copies = rings.into_iter();
    let Some(first) = copies.next() else { return missing };
    if first.first_us > since_us && first.first_seq > 1 {
        let before = clock(first.first_us);
        missing.push(format!("{}: what was before {before} has left its ring", place(first)));
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
            missing.push(format!(
                "{}: {numbers}{} hours from {} to {} are in no copy of its ring",
                place(ring),
                hours(silence),
                clock(last.last_us),
                clock(ring.first_us)
            ));
        }
        if ring.last_us >= last.last_us {
            last = ring;
        }
    }
    let silence = until_us.saturating_sub(last.last_us);
    if silence > MAX_SILENCE_US {
        missing.push(format!(
            "{}: its ring ends at {}, {} hours before the end of the period: copy it again, unless no VM has run there since",
            place(last),
            clock(last.last_us),
            hours(silence)
        ));
    }
    missing
}

fn of_accounts(ledger: &Ledger) -> Vec<String> {
    let mut missing = Vec::new();
    for part in ledger.parts.iter().filter(|part| part.covered_us < part.promised_us) {
        let hours = hours(part.promised_us - part.covered_us);
        missing.push(format!(
            "{}: {} CPU hours of {} have no readings ({})",
            part.node,
            hours,
            part.pod,
            counted(part.gaps, "gap")
        ));
    }
    for twice in &ledger.repeated {
        let place = |node: &str, directory: &str| format!("{} ({})", printable(node), printable(directory));
        let more = match twice.has_more_times {
            true => ", and times that only the second has are missing",
            false => "",
        };
        missing.push(format!(
            "the rings of {} and {} have the same pod {} at the same times: the first is counted{more}",
            place(&twice.counted, &twice.counted_directory),
            place(&twice.left_out, &twice.left_out_directory),
            printable(&twice.vm)
        ));
    }
    if let (Some(first), Some(last)) = (ledger.days_without.first(), ledger.days_without.last()) {
        let days = match ledger.days_without.len() {
            1 => first.clone(),
            several => format!("{} from {first} to {last}", counted(several as u64, "day")),
        };
        // One that is not counted may have it.
        let (ring, why) = match ledger.rings.iter().any(|ring| ring.problem.is_some()) {
            true => ("counted ring", ", or is not counted"),
            false => ("ring", ""),
        };
        missing.push(format!(
            "no {ring} has the VM on {days}: it did not run, or the ring of its node was not given{why}"
        ));
    }
    missing
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
        of_node(rings.iter().collect(), OCTOBER, OCTOBER + 100 * HOUR)
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
}
