//! The real thing: the kernel's counters, and files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use stelia_kubelet::{ContainerCgroup, PodUid};
use stelia_ledger::account::Account;
use stelia_ledger::look::{Look, Seat};
use stelia_ledger::verdict::Verdict;
use stelia_node::cgroup::CgroupPath;
use stelia_node::{System, vfio};

use super::House;
use super::answers::Shelf;
use super::closely::{Program, Tracer};
use super::thread::{Meter, Office, Opened};

/// Where the unit's `StateDirectory=` is.
const DIRECTORY: &str = "/var/lib/stelia/ledger";

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
        Box::new(Counters { system: self.system.clone() })
    }
    fn office(&self) -> Box<dyn Office> {
        Box::new(Ringed { directory: self.directory.clone() })
    }
    fn shelf(&self) -> Arc<dyn Shelf> {
        Arc::new(Ringed { directory: self.directory.clone() })
    }
    fn tracer(&self) -> Arc<dyn Tracer> {
        Arc::new(Program)
    }
}

struct Counters {
    system: System,
}

impl Meter for Counters {
    fn look(&mut self, _seats: &BTreeSet<Seat>) -> Result<Look, String> {
        Ok(Look::default())
    }

    fn devices(&self, origin: &CgroupPath) -> BTreeSet<String> {
        let container = ContainerCgroup::parse(origin.as_str());
        let found = container.map(|container| vfio::devices(&self.system.run, &self.system.sys, &container));
        found.unwrap_or_default()
    }
}

struct Ringed {
    directory: PathBuf,
}

impl Office for Ringed {
    fn open(&mut self, _bytes: u64) -> Result<Opened, String> {
        Err(format!("open {}", self.directory.display()))
    }

    fn bytes(&self) -> u64 {
        0
    }
}

impl Shelf for Ringed {
    fn accounts(&self, _pod: Option<&PodUid>, _since_us: u64, _until_us: u64) -> Result<Vec<Account>, String> {
        Ok(Vec::new())
    }

    fn verify(&self) -> Result<Verdict, String> {
        Ok(Verdict::default())
    }
}
