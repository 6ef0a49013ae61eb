//! Plays the daemon on the model of a host: it samples, and appends entries to a ring.

use std::collections::BTreeMap;

use stelia_ledger::account::{Account, accounts};
use stelia_ledger::day::day;
use stelia_ledger::entry::{Entry, Event, Reading};
use stelia_ledger::recorder::{Draft, EntryRecorder};
use stelia_ledger::replay::LedgerState;
use stelia_ledger::sample::Seat;

use super::host::{ActualCounts, Host, Run};

#[derive(Debug, Clone)]
pub enum Step {
    Run(usize, Run),
    Later(u64),
    /// With the runs between its readings, whether the ring takes its entry, and whether that begins a segment.
    CounterSample {
        before: Vec<(usize, Run)>,
        after: Vec<(usize, Run)>,
        taken: bool,
        segment: bool,
    },
    /// The daemon is killed, and another one starts.
    Killed,
    Stopped,
    Clock(i64),
    /// This CPU is missing in the next sample.
    Hidden(usize),
    State(usize, usize),
    Boot,
}

#[derive(Debug, Default)]
pub struct Played {
    pub ring: Ring,
    /// The counts of each seat, by boot and time.
    truth: BTreeMap<(String, u64), BTreeMap<Seat, ActualCounts>>,
    /// The longest time between two samples, or from a written reading to the first sample of a daemon.
    pub max_sample_gap_us: u64,
    last_sample_up: u64,
}

/// The entries of a ring, and the index of the last segment's first one.
#[derive(Debug, Default)]
pub struct Ring {
    pub entries: Vec<Entry>,
    segment: usize,
}

/// What ran on a VM's CPUs between the first and the last reading of each of its seats.
#[derive(Debug, Default)]
pub struct Truth {
    pub foreign: u64,
    pub devices: u64,
    pub own_ns: u64,
    pub covered_us: u64,
    /// `foreign` by the day on which the window ends.
    pub days: BTreeMap<String, u64>,
}

impl Ring {
    /// Whether the next entry must begin a segment.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn begin_segment(&mut self) {
        self.segment = self.entries.len();
    }

    pub fn append(&mut self, mut entry: Entry) -> Entry {
        entry.seq = self.entries.len() as u64 + 1;
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        self.entries.push(entry.clone());
        entry
    }

    pub fn commit(&mut self, recorder: &mut EntryRecorder, mut draft: Draft) -> Entry {
        let entry = self.append(draft.entry);
        draft.entry = entry.clone();
        recorder.committed(draft, 0);
        entry
    }

    /// A recorder as a starting daemon has it, which reads the last segment.
    pub fn resume(&self, host: &mut Host) -> EntryRecorder {
        host.forget();
        let mut recorder = EntryRecorder::resume(self.replay(), &boot_id(host), "1");
        recorder.set_key("key");
        recorder
    }

    fn replay(&self) -> LedgerState {
        let mut replay = LedgerState::default();
        for entry in &self.entries[self.segment..] {
            replay.apply(entry).unwrap();
        }
        replay
    }

    pub fn account(&self, vm: &str) -> Account {
        let entries = self.entries.iter().cloned().map(|entry| (entry, "hash".into()));
        accounts(entries, 0, 0, Some(vm)).remove(vm).unwrap_or_default()
    }
}

fn boot_id(host: &Host) -> String {
    format!("boot {}", host.boot)
}

impl Played {
    fn resume(&mut self, host: &mut Host) -> EntryRecorder {
        let replay = self.ring.replay();
        let last = replay.seats.values().filter_map(|open| open.last.as_ref());
        let last = last.map(|last| last.up).min().filter(|_| replay.boot == boot_id(host));
        self.last_sample_up = last.unwrap_or(host.up);
        self.ring.resume(host)
    }

    pub fn account(&self, vm: &str) -> Account {
        self.ring.account(vm)
    }

    /// The actual counts of the windows in the entries.
    pub fn truth(&self, vm: &str) -> Truth {
        let mut truth = Truth::default();
        let (mut boot, mut seats, mut last) = (
            String::new(),
            BTreeMap::new(),
            BTreeMap::<u64, (u64, ActualCounts)>::new(),
        );
        for entry in &self.ring.entries {
            let mut read =
                |boot: &str, seat: &Seat, last: &mut BTreeMap<u64, (u64, ActualCounts)>, reading: &Reading| {
                    let (at, up) = reading.time.unwrap_or((entry.at, entry.up));
                    let now = self.truth[&(boot.to_owned(), up)][seat];
                    if let Some((from, before)) = last.insert(reading.seat, (up, now)) {
                        truth.foreign += now.foreign - before.foreign;
                        truth.devices += now.devices - before.devices;
                        truth.own_ns += now.own_ns - before.own_ns;
                        truth.covered_us += up - from;
                        *truth.days.entry(day(at)).or_default() += now.foreign - before.foreign;
                    }
                };
            for event in &entry.events {
                match event {
                    Event::Boot { id } if *id != boot => {
                        boot.clone_from(id);
                        seats.clear();
                        last.clear();
                    }
                    Event::Opened {
                        seat,
                        vm: opened,
                        cpus,
                        threads,
                        cgroup,
                        ..
                    } if opened == vm => {
                        seats.insert(
                            *seat,
                            Seat {
                                cpus: cpus.clone(),
                                threads: threads.clone(),
                                cgroup: cgroup.clone(),
                            },
                        );
                    }
                    Event::Closed { seat, last: end, .. } => {
                        if let (Some(closed), Some(end)) = (seats.remove(seat), end) {
                            read(&boot, &closed, &mut last, end);
                        }
                        last.remove(seat);
                    }
                    _ => {}
                }
            }
            for reading in &entry.readings {
                if let Some(seat) = seats.get(&reading.seat) {
                    read(&boot, seat, &mut last, reading);
                }
            }
        }
        truth
    }
}

pub fn play(steps: &[Step]) -> Played {
    run(steps).0
}

/// Plays the steps, and adds the readings with which an account until now ends.
pub fn play_until_now(steps: &[Step]) -> Played {
    let (mut played, mut host, mut recorder) = run(steps);
    host.later(30_000_000);
    let vms = host.vms();
    played.max_sample_gap_us = played.max_sample_gap_us.max(host.up - played.last_sample_up);
    let (sample, truth) = host.sample(&recorder.seats_to_read(&vms), &[], &[]);
    played.truth.insert((boot_id(&host), host.up), truth);
    played.ring.append(recorder.provisional(&sample, &vms));
    played
}

fn run(steps: &[Step]) -> (Played, Host, EntryRecorder) {
    let (mut host, mut played) = (Host::new(), Played::default());
    let mut recorder = played.resume(&mut host);
    for step in steps {
        match step {
            Step::Run(cpu, what) => host.run(*cpu, *what),
            Step::Later(us) => host.later(*us),
            Step::Clock(by) => host.at = host.at.saturating_add_signed(*by),
            Step::Hidden(cpu) => host.cpus[*cpu].hidden = true,
            Step::State(vm, state) => host.states[*vm] = *state,
            Step::Killed => recorder = played.resume(&mut host),
            Step::Stopped => {
                host.later(1);
                if let Some(entry) = recorder.stop(host.at, host.up, played.ring.is_empty()) {
                    played.ring.append(entry);
                }
                recorder = played.resume(&mut host);
            }
            Step::Boot => {
                host.boot();
                recorder = played.resume(&mut host);
            }
            Step::CounterSample {
                before,
                after,
                taken,
                segment,
            } => {
                host.later(1);
                let vms = host.vms();
                let (sample, truth) = host.sample(&recorder.seats_to_read(&vms), before, after);
                played.max_sample_gap_us = played.max_sample_gap_us.max(host.up - played.last_sample_up);
                played.last_sample_up = host.up;
                played.truth.insert((boot_id(&host), host.up), truth);
                let segment = *segment || played.ring.is_empty();
                let Some(draft) = recorder.take_sample(&sample, &vms, segment) else {
                    continue;
                };
                if !taken {
                    recorder.missed("the disk is full");
                    continue;
                }
                if segment {
                    played.ring.begin_segment();
                }
                played.ring.commit(&mut recorder, draft);
            }
        }
    }
    (played, host, recorder)
}
