//! The real thing: the kernel's counters, and files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use stelia_kubelet::{ContainerCgroup, PodUid};
use stelia_ledger::account::{Account, accounts};
use stelia_ledger::entry::{Entry, Event};
use stelia_ledger::look::{Look, Reader, Seat};
use stelia_ledger::ring::key::{Key, Made};
use stelia_ledger::ring::{Appended, Limits, Ring, key, read, verify};
use stelia_ledger::standing::Standing;
use stelia_ledger::verdict::Verdict;
use stelia_node::cgroup::CgroupPath;
use stelia_node::{System, vfio};

use super::House;
use super::answers::Shelf;
use super::closely::{Program, Tracer};
use super::thread::{Meter, Office, Opened, Pages};
use crate::engine::now_us;

/// Where the unit's `StateDirectory=` is.
const DIRECTORY: &str = "/var/lib/stelia/ledger";
/// Of so many segments the oldest is removed for a new one.
const SEGMENTS: u64 = 16;
/// Microseconds. Of a ring that is written there is a head in the last two days.
const TWO_DAYS: u64 = 2 * 86_400_000_000;

pub(crate) struct Kernel {
    system: System,
    directory: PathBuf,
}

impl Kernel {
    pub(crate) fn new(system: &System) -> Self {
        let given = std::env::var_os("STATE_DIRECTORY").filter(|given| !given.is_empty());
        Self {
            system: system.clone(),
            directory: given.map_or_else(|| DIRECTORY.into(), PathBuf::from),
        }
    }
}

impl House for Kernel {
    fn meter(&self) -> Box<dyn Meter> {
        Box::new(Counters {
            reader: Reader::new(self.system.root()),
            system: self.system.clone(),
        })
    }

    fn office(&self) -> Box<dyn Office> {
        Box::new(Files::new(self.system.root(), &self.directory))
    }

    fn shelf(&self) -> Arc<dyn Shelf> {
        Arc::new(Files::new(self.system.root(), &self.directory))
    }

    fn tracer(&self) -> Arc<dyn Tracer> {
        Arc::new(Program)
    }
}

struct Counters {
    reader: Reader,
    system: System,
}

impl Meter for Counters {
    fn look(&mut self, seats: &BTreeSet<Seat>) -> Result<Look, String> {
        self.reader.look(seats).map_err(|error| error.to_string())
    }

    fn clocks(&self) -> (u64, u64) {
        let up = clock_gettime(ClockId::Boottime);
        let part = |value: i64| u64::try_from(value).unwrap_or(0);
        (now_us(), part(up.tv_sec) * 1_000_000 + part(up.tv_nsec) / 1000)
    }

    fn devices(&self, origin: &CgroupPath) -> BTreeSet<String> {
        let container = ContainerCgroup::parse(origin.as_str());
        let found = container.map(|container| vfio::devices(&self.system.run, &self.system.sys, &container));
        found.unwrap_or_default()
    }
}

/// A directory with a ring and a key.
pub(crate) struct Files {
    /// `/`, for what tells which machine and which boot this is.
    root: PathBuf,
    directory: PathBuf,
}

impl Files {
    pub(crate) fn new(root: &Path, directory: &Path) -> Self {
        Self {
            root: root.to_owned(),
            directory: directory.to_owned(),
        }
    }

    fn line(&self, path: &str) -> Result<String, String> {
        let path = self.root.join(path);
        let text = fs::read_to_string(&path).map_err(|cause| format!("read {}: {cause}", path.display()))?;
        Ok(text.trim().to_owned())
    }
}

fn limits(bytes: u64) -> Limits {
    Limits {
        bytes,
        segment_bytes: bytes / SEGMENTS,
    }
}

impl Office for Files {
    fn open(&mut self, bytes: u64) -> Result<Opened, String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let boot_id = self.line("proc/sys/kernel/random/boot_id")?;
        let (ring, found) = Ring::open(&self.directory, limits(bytes)).map_err(|error| words(&error))?;
        // Without one a key of another machine cannot be told from this one's.
        let machine = self.line("etc/machine-id").unwrap_or_default();
        let (key, made) = Key::load_or_make(&self.directory, &machine).map_err(|error| words(&error))?;
        // The last segment says all that is needed to go on; of a line that is not as it was written nothing follows.
        let entries = read::entries(&self.directory, Some(u64::MAX)).map_err(|error| words(&error))?;
        let (mut standing, mut head) = (Standing::default(), None);
        for (entry, _) in entries.flatten() {
            // Of what does not follow nothing is taken over; verifying says which it is.
            let _ = standing.apply(&entry);
            head = last_head(&entry).or(head);
        }
        if head.is_none() {
            // A segment that was just begun has none.
            let since_us = standing.at.saturating_sub(TWO_DAYS);
            let entries = read::entries(&self.directory, Some(since_us)).map_err(|error| words(&error))?;
            head = entries.flatten().filter_map(|(entry, _)| last_head(&entry)).last();
        }
        Ok(Opened {
            cut: found.cut,
            fault: found
                .fault
                .map(|fault| format!("{}: line {}: {}", fault.segment, fault.line, fault.text)),
            last: found.last,
            standing,
            head,
            boot_id,
            key: key.public(),
            new_key: match made {
                Made::Loaded => None,
                Made::New => Some("it is the first one of this node.".to_owned()),
                Made::Cloned => {
                    Some("the one before was another machine's, whose disk this one was copied from.".to_owned())
                }
            },
            pages: Box::new(Signed { ring, key }),
        })
    }

    fn bytes(&self) -> u64 {
        let found = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let sizes = found.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "ledger"));
        sizes.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
    }
}

fn last_head(entry: &Entry) -> Option<Event> {
    let mut heads = entry.events.iter().filter(|event| matches!(event, Event::Head { .. }));
    heads.next_back().cloned()
}

struct Signed {
    ring: Ring,
    key: Key,
}

impl Pages for Signed {
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

impl Shelf for Files {
    fn accounts(
        &self,
        pod: Option<&PodUid>,
        since_us: u64,
        until_us: u64,
        now: Option<Entry>,
    ) -> Result<Vec<Account>, String> {
        let entries = match read::entries(&self.directory, Some(since_us)) {
            Ok(entries) => Some(entries),
            // Nothing was kept yet.
            Err(_) if !self.directory.exists() => None,
            Err(error) => return Err(error.to_string()),
        };
        // Of a line that is not as it was written nothing follows; verifying says which.
        let entries = entries.into_iter().flatten().flatten();
        let entries = entries.chain(now.map(|now| (now, String::new())));
        let all = accounts(entries, since_us, until_us, pod.map(PodUid::as_str));
        Ok(all.into_values().collect())
    }

    fn verify(&self, key: &str) -> Result<Verdict, String> {
        // The key that is used, and those that were before: a head of any other is a fault.
        let mut known = key::retired(&self.directory).unwrap_or_default();
        known.extend(Some(key.to_owned()).filter(|key| !key.is_empty()));
        // Not as whoever has a copy from somebody else: on the first day there is no head yet.
        verify::check(verify::Ring::Directory(&self.directory), &known, None).map_err(|error| error.to_string())
    }
}
