//! The daemon's part: samples, the ring's answers, and what an account is made of.

use std::collections::BTreeMap;

use stelia_ledger::account::{Account, accounts};
use stelia_ledger::day::day;
use stelia_ledger::entry::{Entry, Event, Reading};
use stelia_ledger::recorder::EntryRecorder;
use stelia_ledger::replay::LedgerState;
use stelia_ledger::sample::Seat;

use super::host::{Host, Run, True};

#[derive(Debug, Clone)]
pub enum Step {
    Run(usize, Run),
    Later(u64),
    /// With what runs between its readings, whether the ring takes what it is worth, and whether a segment begins.
    CounterSample {
        before: Vec<(usize, Run)>,
        after: Vec<(usize, Run)>,
        taken: bool,
        segment: bool,
    },
    /// The daemon, and it begins again.
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
    entries: Vec<Entry>,
    /// By boot and time: what is true of each seat.
    truth: BTreeMap<(String, u64), BTreeMap<Seat, True>>,
    /// Between two samples, or from a reading that was kept to the first sample of a daemon.
    pub longest_rest: u64,
    looked: u64,
    segment: usize,
}

/// What is true of a VM between the first and the last reading of each of its seats.
#[derive(Debug, Default)]
pub struct Truth {
    pub foreign: u64,
    pub devices: u64,
    pub own_ns: u64,
    pub covered_us: u64,
    /// Foreign ones by the day on which their window ends.
    pub days: BTreeMap<String, u64>,
}

impl Played {
    fn keep(&mut self, mut entry: Entry) -> Entry {
        entry.seq = self.entries.len() as u64 + 1;
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        self.entries.push(entry.clone());
        entry
    }

    /// Of the last segment alone, as a daemon finds it.
    fn replay(&self) -> LedgerState {
        let mut replay = LedgerState::default();
        for entry in &self.entries[self.segment..] {
            replay.apply(entry).unwrap();
        }
        replay
    }

    fn resume(&mut self, host: &mut Host) -> EntryRecorder {
        host.forget();
        let replay = self.replay();
        let boot = format!("boot {}", host.boot);
        let last = replay.seats.values().filter_map(|open| open.last.as_ref());
        let last = last.map(|last| last.up).min().filter(|_| replay.boot == boot);
        self.looked = last.unwrap_or(host.up);
        let mut recorder = EntryRecorder::resume(replay, &boot, "1");
        recorder.use_key("key");
        recorder
    }

    pub fn account(&self, vm: &str) -> Account {
        let entries = self.entries.iter().cloned().map(|entry| (entry, "hash".into()));
        accounts(entries, 0, 0, Some(vm)).remove(vm).unwrap_or_default()
    }

    /// By the entries' own words which seat was read when; what was true then is not from them.
    pub fn truth(&self, vm: &str) -> Truth {
        let mut truth = Truth::default();
        let (mut boot, mut seats, mut last) = (String::new(), BTreeMap::new(), BTreeMap::<u64, (u64, True)>::new());
        for entry in &self.entries {
            let mut read = |boot: &str, seat: &Seat, last: &mut BTreeMap<u64, (u64, True)>, reading: &Reading| {
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
                        vm: of,
                        cpus,
                        threads,
                        ..
                    } if of == vm => {
                        seats.insert(
                            *seat,
                            Seat {
                                cpus: cpus.clone(),
                                threads: threads.clone(),
                            },
                        );
                    }
                    Event::Closed { seat, last: end, .. } => {
                        if let (Some(of), Some(end)) = (seats.remove(seat), end) {
                            read(&boot, &of, &mut last, end);
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
                if let Some(entry) = recorder.stopped(host.at, host.up, played.entries.is_empty()) {
                    played.keep(entry);
                }
                recorder = played.resume(&mut host);
            }
            Step::Boot => {
                host.boots();
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
                let (sample, truth) = host.sample(&recorder.wants(&vms), before, after);
                played.longest_rest = played.longest_rest.max(host.up - played.looked);
                played.looked = host.up;
                played.truth.insert((format!("boot {}", host.boot), host.up), truth);
                let segment = *segment || played.entries.is_empty();
                let Some(mut draft) = recorder.take_sample(&sample, &vms, segment) else {
                    continue;
                };
                if !taken {
                    recorder.missed("the disk is full");
                    continue;
                }
                if segment {
                    played.segment = played.entries.len();
                }
                draft.entry = played.keep(draft.entry);
                recorder.committed(draft, 0);
            }
        }
    }
    played
}
