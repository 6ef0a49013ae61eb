mod connections;
mod counts;
mod in_place;
mod orders;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::thread;

use crate::client::{self, OrderError};
use crate::files::Files;
use crate::order::Latency;
use crate::testing::tracefs::Tracefs;
use crate::testing::{FakeKernel, set, vm};
use rustix::pipe::pipe;
use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupError, CgroupPath, File};
use stelia_model::record::testing::{in_place, record};
use stelia_model::record::{Record, RecordPlace, Tree};

use super::*;

const SHORT: Duration = Duration::from_millis(300);
/// What a slow machine does not miss.
const LONG: Duration = Duration::from_secs(60);
const POD: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";

/// Cgroups with attributes, each with processes or without.
#[derive(Default)]
struct Records(BTreeMap<CgroupPath, (BTreeMap<String, String>, bool)>);

impl Records {
    /// Where the daemon writes it; its cgroup has processes or none.
    fn add(&mut self, record: &Record, populated: bool) {
        let tree = Tree::of(record);
        self.put(record, tree.place());
        self.0.entry(tree.outer().clone()).or_default().1 = populated;
    }

    /// Anywhere.
    fn put(&mut self, record: &Record, place: &RecordPlace) {
        let attributes = record.attributes().into_iter();
        let attributes = attributes.map(|(name, value)| (place.name(name), value));
        self.0.entry(place.cgroup().clone()).or_default().0.extend(attributes);
    }

    fn at(&self, cgroup: &CgroupPath) -> Result<&(BTreeMap<String, String>, bool), CgroupError> {
        self.0.get(cgroup).ok_or_else(|| CgroupError {
            operation: format!("read {cgroup}"),
            cause: io::Error::from_raw_os_error(2),
        })
    }
}

impl Cgroups for Records {
    fn exists(&self, cgroup: &CgroupPath) -> bool {
        self.0.keys().any(|path| path.is_within(cgroup))
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<String>, CgroupError> {
        let below = self
            .0
            .keys()
            .filter_map(|path| path.as_str().strip_prefix(cgroup.as_str())?.strip_prefix('/'));
        let names: BTreeSet<&str> = below.filter_map(|rest| rest.split('/').next()).collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn read(&self, cgroup: &CgroupPath, file: File) -> Result<String, CgroupError> {
        let (_, populated) = self.at(cgroup)?;
        Ok(match file {
            File::Events => format!("populated {}\nfrozen 0", u8::from(*populated)),
            _ => String::new(),
        })
    }

    fn owner(&self, _: &CgroupPath) -> Result<u32, CgroupError> {
        Ok(0)
    }

    fn attributes(&self, cgroup: &CgroupPath) -> Result<BTreeMap<String, String>, CgroupError> {
        Ok(self.at(cgroup)?.0.clone())
    }

    fn write(&self, _: &CgroupPath, _: File, _: &str) -> Result<(), CgroupError> {
        panic!("written")
    }

    fn create(&self, _: &CgroupPath) -> Result<(), CgroupError> {
        panic!("written")
    }

    fn remove(&self, _: &CgroupPath) -> Result<(), CgroupError> {
        panic!("written")
    }

    fn set_attribute(&self, _: &CgroupPath, _: &str, _: &str) -> Result<(), CgroupError> {
        panic!("written")
    }

    fn remove_attribute(&self, _: &CgroupPath, _: &str) -> Result<(), CgroupError> {
        panic!("written")
    }
}

struct Node {
    kernel: FakeKernel,
    records: Records,
    peer_timeout: Duration,
}

impl Node {
    /// Eight CPUs with idle states and without cpufreq, a disk, and one VM in its scope on CPUs 2 and 3.
    fn new() -> Self {
        let kernel = FakeKernel::new(8);
        let mut tree = kernel.tree();
        for cpu in 0..8 {
            tree.put(&latency(cpu), "0");
        }
        tree.put("/sys/devices/system/cpu/cpuidle/current_driver", "intel_idle");
        tree.put("/proc/2/task/2/children", "");
        tree.add_irq(24, "nvme0q0", None);
        drop(tree);
        let mut records = Records::default();
        records.add(&record(), true);
        Self {
            kernel,
            records,
            peer_timeout: LONG,
        }
    }

    fn value(&self, path: &str) -> String {
        self.kernel.read(path).unwrap().trim().to_owned()
    }

    fn writes(&self) -> usize {
        self.kernel.tree().writes.len()
    }

    fn with<T>(&self, then: impl FnOnce(&mut Server<'_>) -> T) -> T {
        self.admitting(&|_| Ok(()), then)
    }

    fn admitting<T>(
        &self,
        admit: &dyn Fn(&UnixStream) -> Result<(), ForeignPeer>,
        then: impl FnOnce(&mut Server<'_>) -> T,
    ) -> T {
        then(&mut Server {
            system: self.kernel.system(),
            cgroups: &self.records,
            sockets: Path::new("/nonexistent"),
            admit,
            peer_timeout: self.peer_timeout,
            clock: &|| 1,
            state: ConnectionState::default(),
        })
    }

    /// What a peer reads that sends this and waits.
    fn said(&self, bytes: &[u8]) -> String {
        let (mut client, server) = UnixStream::pair().unwrap();
        let bytes = bytes.to_owned();
        let peer = thread::spawn(move || {
            // The answer may come before all of it was taken.
            let _ = client.write_all(&bytes);
            let mut answer = String::new();
            let _ = client.read_to_string(&mut answer);
            answer
        });
        self.with(|serving| serving.serve_connection(server));
        peer.join().unwrap()
    }

    fn answer(&self, order: &Order) -> OrderAnswer {
        serde_json::from_str(&self.said(&line(order))).unwrap()
    }

    /// The reason why this is refused, after which nothing is changed.
    fn refused(&self, bytes: &[u8]) -> String {
        let answer = self.said(bytes);
        let reason = match serde_json::from_str(&answer).unwrap() {
            OrderAnswer::Refused(reason) => reason,
            other => panic!("{other:?}"),
        };
        self.unchanged();
        reason
    }

    /// The report of an order that is carried out.
    fn done(&self, order: &Order) -> Report {
        match self.answer(order) {
            OrderAnswer::Done(report) => report,
            other => panic!("{other:?}"),
        }
    }

    /// Why the VM was left out of what was carried out.
    fn left_out(&self, order: &Order) -> Option<String> {
        self.done(order).left_out.get(POD).cloned()
    }

    /// From now on there is this record alone.
    fn has_only(&mut self, record: &Record, populated: bool) {
        self.records = Records::default();
        self.records.add(record, populated);
    }

    fn unchanged(&self) {
        let tree = self.kernel.tree();
        assert_eq!((tree.writes.len(), tree.saves), (0, 0), "{:?}", tree.writes);
    }
}

/// The line of an order.
fn line(order: &Order) -> Vec<u8> {
    let text = serde_json::to_string(&Request::Order(order.clone())).unwrap();
    (text + "\n").into_bytes()
}

fn latency(cpu: u32) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")
}

const DISK: &str = "/proc/irq/24/smp_affinity_list";

/// CPUs 2 and 3 of the one VM are not to sleep deeply.
fn order() -> Order {
    let mut vm = vm("2-3");
    vm.latency = Some(Latency::Microseconds(20));
    Order {
        steer: true,
        shared: set("0-1,4-7"),
        vms: [(POD.to_owned(), vm)].into(),
        ..Order::default()
    }
}
