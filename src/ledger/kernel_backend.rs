//! Implements the ledger's traits with the kernel's counters and the ring's files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stelia_cpus::located::{Located, Part};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::clock::{now_us, up_us};
use stelia_kernel::locality::{InterruptCounters, recorded};
use stelia_kernel::{System, vfio};
use stelia_kubelet::{PodUid, home};
use stelia_ledger::account::{Account, accounts};
use stelia_ledger::entry::{Entry, Event};
use stelia_ledger::replay::LedgerState;
use stelia_ledger::ring::key::{Key, KeyOrigin};
use stelia_ledger::ring::{Appended, Limits, Ring, key, read, verify};
use stelia_ledger::sample::{CounterSample, Reader, Seat};
use stelia_ledger::verdict::Verdict;
use stelia_model as model;
use stelia_settings::Settings;
use tokio::sync::watch;

use super::LedgerBackend;
use super::accounts::AccountReader;
use super::attribution::{QuietTracer, Tracer};
use super::counter_reader::CounterReader;
use super::open_ring::{OpenedRing, RingOpener, RingWriter};
use crate::engine::localities;

/// The directory of the ring if systemd did not start the daemon, the same as by the unit's `StateDirectory=`.
const DEFAULT_DIRECTORY: &str = "/var/lib/stelia/ledger";
/// The number of segments of a full ring.
const MAX_SEGMENTS: u64 = 16;
/// How far back the last head is searched, in microseconds. A head is written every day.
const HEAD_SEARCH_US: u64 = 2 * 86_400_000_000;

/// The kernel's counters, and the ring in the state directory.
pub(crate) struct KernelBackend {
    system: System,
    settings: watch::Receiver<Arc<Settings>>,
    directory: PathBuf,
}

impl KernelBackend {
    pub(crate) fn new(system: &System, settings: watch::Receiver<Arc<Settings>>) -> Self {
        let directory = std::env::var_os("STATE_DIRECTORY").filter(|directory| !directory.is_empty());
        Self {
            system: system.clone(),
            settings,
            directory: directory.map_or_else(|| DEFAULT_DIRECTORY.into(), PathBuf::from),
        }
    }
}

impl LedgerBackend for KernelBackend {
    fn counter_reader(&self) -> Box<dyn CounterReader> {
        Box::new(KernelCounters {
            reader: Reader::new(self.system.root()),
            system: self.system.clone(),
            settings: self.settings.clone(),
            kubelet: home::ROOTS[0].into(),
            interrupts: BTreeMap::new(),
        })
    }

    fn ring_opener(&self) -> Box<dyn RingOpener> {
        Box::new(RingDirectory::new(self.system.root(), &self.directory))
    }

    fn account_reader(&self) -> Arc<dyn AccountReader> {
        Arc::new(RingDirectory::new(self.system.root(), &self.directory))
    }

    fn tracer(&self) -> Arc<dyn Tracer> {
        Arc::new(QuietTracer)
    }
}

struct KernelCounters {
    reader: Reader,
    system: System,
    settings: watch::Receiver<Arc<Settings>>,
    /// kubelet's root directory, as set or last found.
    kubelet: PathBuf,
    /// The interrupts' counters of VMs when a share of them was last taken.
    interrupts: BTreeMap<PodUid, InterruptCounters>,
}

impl CounterReader for KernelCounters {
    fn read(&mut self, seats: &BTreeSet<Seat>) -> Result<CounterSample, String> {
        self.reader.sample(seats).map_err(|error| error.to_string())
    }

    fn clocks(&self) -> (u64, u64) {
        (now_us(), up_us())
    }

    fn devices(&self, origin: &CgroupPath) -> BTreeSet<String> {
        vfio::devices(&self.system.run, &self.system.sys, origin)
    }

    fn located(
        &mut self,
        view: &model::Node,
        pods: &BTreeSet<PodUid>,
        record: &BTreeMap<String, Vec<Located>>,
    ) -> BTreeMap<PodUid, Vec<Located>> {
        let (cgroups, root) = (&*self.system.cgroups, self.system.root());
        // Where it is not clear which is kubelet's, it is the one before.
        let setting = self.settings.borrow().kubelet_root.clone();
        if let Ok(path) = home::by_setting(&setting, root, Some(&self.kubelet)) {
            self.kubelet = path;
        }
        let found = localities(cgroups, view, root, &self.kubelet, |pod| pods.contains(pod));
        self.interrupts.retain(|pod, _| view.instances.contains_key(pod));
        let mut all = BTreeMap::new();
        for (uid, locality) in found.instances {
            let Ok(pod) = PodUid::parse(&uid) else { continue };
            let fired = locality.interrupts.as_ref().map(|now| {
                let counters = self.interrupts.entry(pod.clone()).or_default();
                counters.take_share(now, &view.topology)
            });
            let record = record.get(&uid).map_or(&[][..], Vec::as_slice);
            let mut parts = recorded(&locality, fired.unwrap_or_default(), record);
            if found.devices_unknown.is_some() {
                keep_devices(&mut parts, record);
            }
            all.insert(pod, parts);
        }
        all
    }
}

/// Add the devices of the record that are not known now: what kubelet gave a VM stays where it was. A VM without CPUs of its own has no parts.
fn keep_devices(parts: &mut Vec<Located>, record: &[Located]) {
    if parts.is_empty() {
        return;
    }
    let devices = record.iter().filter(|one| one.part == Part::Device);
    for device in devices {
        if !parts.iter().any(|part| part.is_of(device)) {
            parts.push(device.clone());
        }
    }
}

/// A directory with a ring and a key.
pub(crate) struct RingDirectory {
    /// `/`, from which the ids of the machine and the boot are read.
    root: PathBuf,
    directory: PathBuf,
}

impl RingDirectory {
    pub(crate) fn new(root: &Path, directory: &Path) -> Self {
        Self {
            root: root.to_owned(),
            directory: directory.to_owned(),
        }
    }

    /// A file below the root, without the white space around it.
    fn read_trimmed(&self, path: &str) -> Result<String, String> {
        let path = self.root.join(path);
        let text = fs::read_to_string(&path).map_err(|cause| format!("read {}: {cause}", path.display()))?;
        Ok(text.trim().to_owned())
    }
}

fn limits(bytes: u64) -> Limits {
    Limits {
        bytes,
        segment_bytes: bytes / MAX_SEGMENTS,
    }
}

impl RingOpener for RingDirectory {
    fn open(&mut self, bytes: u64) -> Result<OpenedRing, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let boot_id = self.read_trimmed("proc/sys/kernel/random/boot_id")?;
        let (ring, recovery) = Ring::open(&self.directory, limits(bytes)).map_err(|error| text(&error))?;
        // Without a machine id, the key of another host cannot be recognised.
        let machine = self.read_trimmed("etc/machine-id").unwrap_or_default();
        let (key, origin) = Key::load_or_make(&self.directory, &machine).map_err(|error| text(&error))?;
        // The recorder resumes from the last segment. A line that was changed after it was written is skipped.
        let entries = read::entries(&self.directory, Some(u64::MAX)).map_err(|error| text(&error))?;
        let (mut replay, mut head) = (LedgerState::default(), None);
        for (entry, _) in entries.flatten() {
            // An entry that does not follow the one before is skipped; `verify` names it.
            let _ = replay.apply(&entry);
            head = last_head(&entry).or(head);
        }
        if head.is_none() {
            // A new segment has no head yet.
            let since_us = replay.at.saturating_sub(HEAD_SEARCH_US);
            let entries = read::entries(&self.directory, Some(since_us)).map_err(|error| text(&error))?;
            head = entries.flatten().filter_map(|(entry, _)| last_head(&entry)).last();
        }
        Ok(OpenedRing {
            cut_bytes: recovery.cut,
            fault: recovery
                .fault
                .map(|fault| format!("{}: line {}: {}", fault.segment, fault.line, fault.text)),
            last: recovery.last,
            replay,
            head,
            boot_id,
            key: key.public(),
            new_key: match origin {
                KeyOrigin::Loaded => None,
                KeyOrigin::New => Some("it is the first one of this node.".to_owned()),
                KeyOrigin::Cloned => {
                    Some("the one before was another machine's, whose disk this one was copied from.".to_owned())
                }
            },
            writer: Box::new(SignedRing { ring, key }),
        })
    }

    fn bytes(&self) -> u64 {
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let segments = files.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "ledger"));
        segments.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
    }
}

fn last_head(entry: &Entry) -> Option<Event> {
    let mut heads = entry.events.iter().filter(|event| matches!(event, Event::Head { .. }));
    heads.next_back().cloned()
}

/// The open ring with the key that signs its heads.
struct SignedRing {
    ring: Ring,
    key: Key,
}

impl RingWriter for SignedRing {
    fn append(&mut self, entry: &mut Entry) -> Result<Appended, String> {
        self.ring.append(entry).map_err(|error| error.to_string())
    }

    fn starts_segment(&self) -> bool {
        self.ring.starts_segment()
    }

    fn limit(&mut self, bytes: u64) {
        self.ring.set_limits(limits(bytes));
    }

    fn sign(&self, day: &str, seq: u64, hash: &str) -> Event {
        self.key.sign_head(day, seq, hash)
    }
}

impl AccountReader for RingDirectory {
    fn accounts(
        &self,
        pod: Option<&PodUid>,
        since_us: u64,
        until_us: u64,
        reading: Option<Entry>,
    ) -> Result<Vec<Account>, String> {
        let entries = match read::entries(&self.directory, Some(since_us)) {
            Ok(entries) => Some(entries),
            // No entry was written yet.
            Err(_) if !self.directory.exists() => None,
            Err(error) => return Err(error.to_string()),
        };
        // A line that was changed after it was written is skipped; `verify` names it.
        let entries = entries.into_iter().flatten().flatten();
        let entries = entries.chain(reading.map(|reading| (reading, String::new())));
        let all = accounts(entries, since_us, until_us, pod.map(PodUid::as_str));
        Ok(all.into_values().collect())
    }

    fn verify(&self, key: &str) -> Result<Verdict, String> {
        // A head that neither the current key nor a retired one signed is a fault.
        let mut keys = key::retired(&self.directory).unwrap_or_default();
        keys.extend(Some(key.to_owned()).filter(|key| !key.is_empty()));
        // Not `verify::verify`, which requires a head: on the first day there is none yet.
        verify::check(verify::Ring::Directory(&self.directory), &keys, None).map_err(|error| error.to_string())
    }
}
