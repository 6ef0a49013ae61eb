//! The entries with where the parts of VMs are.

use std::collections::BTreeMap;

use stelia_cpus::located::{Located, moved};

use super::vm::is_sampled;
use super::{Draft, EntryRecorder, RecordedVm};
use crate::entry::{Entry, Event};
use crate::sample::CounterSample;

impl EntryRecorder {
    /// The entry to write after the sample's, if a part of a VM moved, came or went. With `all` it also has the VMs of which nothing moved:
    /// that is due after the first entry of a segment.
    ///
    /// It has nothing else, because a version that does not know the event cannot read the entry. Nor may it begin a segment: the first entry
    /// has what the later ones continue from.
    pub fn take_located(&self, sample: &CounterSample, vms: &BTreeMap<String, RecordedVm>, all: bool) -> Option<Draft> {
        let before = (self.replay.boot == self.boot).then_some(&self.replay.located);
        let located = vms.iter().filter_map(|(uid, vm)| {
            let recorded = before.and_then(|before| before.get(uid)).map_or(&[][..], Vec::as_slice);
            let parts = parts(recorded, vm, sample.at_us, all)?;
            Some(Event::Located { vm: uid.clone(), parts })
        });
        let events: Vec<Event> = located.collect();
        let entry = Entry {
            at: sample.at_us,
            up: sample.up_us,
            events,
            ..Entry::default()
        };
        (!entry.events.is_empty()).then(|| Draft {
            entry,
            ..Draft::default()
        })
    }

    /// Where the parts of VMs are by the last record, by pod UID.
    pub fn located(&self) -> &BTreeMap<String, Vec<Located>> {
        &self.replay.located
    }
}

/// The parts to write of a VM; none while it has no exclusive CPUs.
fn parts(recorded: &[Located], vm: &RecordedVm, at_us: u64, all: bool) -> Option<Vec<Located>> {
    let now = match (&vm.located, is_sampled(&vm.state)) {
        (_, false) => Some(&[][..]),
        (now, true) => now.as_deref(),
    };
    let changed = now.and_then(|now| moved(recorded, now, at_us));
    changed.or_else(|| (all && !recorded.is_empty()).then(|| recorded.to_vec()))
}

#[cfg(test)]
mod tests {
    use stelia_cpus::located::Part;

    use super::*;
    use crate::replay::LedgerState;

    const BOOT: &str = "0b6d4fd0-6c3c-4b0e-9f1b-4d8f6c1d2e3f";

    fn at(second: u64) -> CounterSample {
        CounterSample {
            at_us: second * 1_000_000,
            up_us: second * 1_000_000,
            ..CounterSample::default()
        }
    }

    fn vm(node: u32) -> BTreeMap<String, RecordedVm> {
        let cpus = Located {
            part: Part::Cpus,
            nodes: vec![(node, 100)],
            near_percent: 100,
            ..Located::default()
        };
        let vm = RecordedVm {
            state: "isolated".to_owned(),
            located: Some(vec![cpus]),
            ..RecordedVm::default()
        };
        [("pod".to_owned(), vm)].into()
    }

    fn write(recorder: &mut EntryRecorder, draft: Option<Draft>, seq: u64) -> Vec<Event> {
        let mut draft = draft.expect("there is something to write");
        draft.entry.seq = seq;
        let events = draft.entry.events.clone();
        recorder.committed(draft, 100);
        events
    }

    #[test]
    fn where_a_vm_is_has_an_entry_of_its_own_and_is_repeated_after_the_first_one_of_a_segment() {
        let mut recorder = EntryRecorder::resume(LedgerState::default(), BOOT, "1");
        let draft = recorder.take_sample(&at(1), &vm(0), true);
        let first = write(&mut recorder, draft, 1);
        assert!(
            !first.iter().any(|event| matches!(event, Event::Located { .. })),
            "{first:?}"
        );
        let draft = recorder.take_located(&at(1), &vm(0), true);
        let located = write(&mut recorder, draft, 2);
        assert!(
            matches!(located.as_slice(), [Event::Located { parts, .. }] if parts[0].since_us == 1_000_000),
            "{located:?}"
        );

        assert_eq!(recorder.take_located(&at(2), &vm(0), false), None, "nothing moved");
        // At the next segment, also where it was not read.
        let mut unread = vm(0);
        unread.values_mut().for_each(|vm| vm.located = None);
        let draft = recorder.take_located(&at(3), &unread, true);
        assert_eq!(write(&mut recorder, draft, 3), located);
        let draft = recorder.take_located(&at(4), &vm(1), false);
        assert_ne!(write(&mut recorder, draft, 4), located);
    }
}
