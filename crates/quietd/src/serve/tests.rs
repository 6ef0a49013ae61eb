use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::thread;

use rustix::pipe::pipe;
use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;
use stelia_node::cgroup::{CgroupError, CgroupPath, File};
use stelia_quiet::client::{self, OrderError};
use stelia_quiet::files::Files;
use stelia_quiet::order::{Latency, Vm};
use stelia_quiet::testing::FakeKernel;
use stelia_quiet::testing::tracefs::Tracefs;
use stelia_record::testing::{in_place, record};
use stelia_record::{Record, RecordPlace, Tree};

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
            state: State::default(),
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
        self.with(|serving| serving.attend(server));
        peer.join().unwrap()
    }

    fn answer(&self, order: &Order) -> Answer {
        let text = serde_json::to_string(order).unwrap() + "\n";
        serde_json::from_str(&self.said(text.as_bytes())).unwrap()
    }

    /// The reason why this is refused, after which nothing is changed.
    fn refused(&self, bytes: &[u8]) -> String {
        let answer = self.said(bytes);
        let reason = match serde_json::from_str(&answer).unwrap() {
            Answer::Refused(reason) => reason,
            other => panic!("{other:?}"),
        };
        self.unchanged();
        reason
    }

    /// Why the VM was left out of what was carried out.
    fn left_out(&self, order: &Order) -> Option<String> {
        match self.answer(order) {
            Answer::Done(report) => report.left_out.get(POD).cloned(),
            other => panic!("{other:?}"),
        }
    }

    fn unchanged(&self) {
        let tree = self.kernel.tree();
        assert_eq!((tree.writes.len(), tree.saves), (0, 0), "{:?}", tree.writes);
    }
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn latency(cpu: u32) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")
}

const DISK: &str = "/proc/irq/24/smp_affinity_list";

/// CPUs 2 and 3 of the one VM are not to sleep deeply.
fn order() -> Order {
    let vm = Vm {
        cpus: set("2-3"),
        latency: Some(Latency::Microseconds(20)),
        ..Vm::default()
    };
    Order {
        steer: true,
        shared: set("0-1,4-7"),
        vms: [(POD.to_owned(), vm)].into(),
        ..Order::default()
    }
}

#[test]
fn an_order_is_carried_out_answered_and_undone_by_one_without_vms() {
    let node = Node::new();
    let sleeps = || [2, 3, 4].map(|cpu| node.value(&latency(cpu)));
    let (before, mask) = (sleeps(), node.value(DISK));
    let Answer::Done(report) = node.answer(&order()) else {
        panic!("refused")
    };
    assert_eq!((report.interrupts, report.problems.len()), (1, 0), "{report:?}");
    assert_eq!(sleeps(), ["20", "20", "0"]);
    assert!(set(&node.value(DISK)).is_disjoint(&set("2-3")));
    // The same again changes nothing.
    let writes = node.writes();
    let Answer::Done(report) = node.answer(&order()) else {
        panic!("refused")
    };
    assert_eq!((report.writes, node.writes()), (0, writes));
    let Answer::Done(report) = node.answer(&Order::default()) else {
        panic!("refused")
    };
    assert_eq!(report.problems, []);
    assert_eq!((sleeps(), node.value(DISK)), (before, mask));
}

/// An instance in place whose vCPU runs on CPU 2, of a VM whose other threads run on CPU 3.
fn in_a_container() -> Record {
    let unit = format!("kubepods-pod{}.slice", POD.replace('-', "_"));
    let container = format!("/kubepods.slice/{unit}/cri-containerd-{}.scope", "a".repeat(64));
    Record {
        origin: CgroupPath::parse(&container).unwrap(),
        exclusive: set("2"),
        spare: set("3"),
        ..in_place()
    }
}

/// CPU 2 of the one VM is not to sleep deeply.
fn order_of_one_cpu() -> Order {
    let mut order = order();
    order.vms.get_mut(POD).unwrap().cpus = set("2");
    order
}

#[test]
fn an_instance_in_place_is_found_by_the_record_on_its_pod() {
    let mut node = Node::new();
    node.records = Records::default();
    node.records.add(&in_a_container(), true);
    assert_eq!(node.left_out(&order_of_one_cpu()), None);
    // With crun the processes are one level below the container's cgroup.
    let mut crun = in_a_container();
    crun.origin = crun.origin.child("container");
    node.records = Records::default();
    node.records.add(&crun, true);
    node.records.0.entry(crun.origin.clone()).or_default().1 = true;
    assert_eq!(node.left_out(&order_of_one_cpu()), None);
}

#[test]
fn what_a_container_writes_on_its_own_cgroup_is_not_read() {
    let mut node = Node::new();
    node.records = Records::default();
    let forged = in_a_container();
    let own = RecordPlace::on_scope(forged.origin.clone());
    node.records.put(&forged, &own);
    // As it would be called on the pod's cgroup.
    let named = RecordPlace::on_pod(&forged.origin);
    let attributes = forged.attributes().into_iter();
    let attributes = attributes.map(|(name, value)| (named.name(name), value));
    let container = node.records.0.get_mut(&forged.origin).unwrap();
    container.0.extend(attributes);
    container.1 = true;
    let pod = forged.origin.parent().unwrap();
    node.records.0.entry(pod).or_default();
    let none = Some("it has no live instance".to_owned());
    assert_eq!(node.left_out(&order_of_one_cpu()), none);
    node.unchanged();
    assert_eq!(exclusive(&node.records), Ok(CpuSet::new()));
}

#[test]
fn a_record_of_another_pod_or_container_is_no_record_of_this_one() {
    let of = in_a_container();
    let other_pod = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";
    let other_pod = stelia_kubelet::PodUid::parse(other_pod).unwrap();
    let lies = [
        Record {
            pod: other_pod,
            ..of.clone()
        },
        Record {
            origin: CgroupPath::parse("/init.scope").unwrap(),
            ..of.clone()
        },
    ];
    for lie in lies {
        let mut node = Node::new();
        node.records = Records::default();
        node.records.put(&lie, Tree::of(&of).place());
        node.records.0.entry(of.origin.clone()).or_default().1 = true;
        let reason = node.left_out(&order_of_one_cpu()).unwrap();
        assert!(reason.contains("the record is of"), "{reason}");
        node.unchanged();
        assert_eq!(exclusive(&node.records), Ok(CpuSet::new()));
    }
}

#[test]
fn what_is_no_order_is_refused_by_name_and_nothing_is_written() {
    let node = Node::new();
    let good = serde_json::to_string(&order()).unwrap();
    let cases: [(&[u8], &str); 5] = [
        (b"\n", "it is not JSON that is understood"),
        (b"{\"steer\":tru\n", "it is not JSON that is understood"),
        (b"{\"steer\":true,\"restart\":true}\n", "unknown field `restart`"),
        (
            b"{\"vms\":{\"x\":{\"cpus\":\"9999999\"}}}\n",
            "it is not JSON that is understood",
        ),
        (b"\xff\xfe\n", "no order was received: the line is not UTF-8"),
    ];
    for (bytes, expected) in cases {
        let reason = node.refused(bytes);
        assert!(reason.contains(expected), "{reason}");
    }
    let impatient = Node {
        peer_timeout: SHORT,
        ..node
    };
    let reason = impatient.refused(&good.as_bytes()[..20]);
    assert_eq!(reason, "no order was received: it took longer than 0 s");
}

#[test]
fn an_order_that_is_too_long_is_refused_before_it_ends() {
    let node = Node::new();
    let reason = node.refused(&vec![b' '; MAX_LINE + 1]);
    assert_eq!(
        reason,
        format!("no order was received: the line is longer than {MAX_LINE} bytes")
    );
}

#[test]
fn a_pod_that_has_no_or_only_a_dead_instance_is_left_out() {
    let mut node = Node::new();
    let none = Some("it has no live instance".to_owned());
    node.records = Records::default();
    assert_eq!(node.left_out(&order()), none);
    node.records.add(&record(), false);
    assert_eq!(node.left_out(&order()), none);
    // Another pod's record where this one's would be.
    let scope = Tree::of(&record()).scope().clone();
    let mut other = record();
    other.pod = stelia_kubelet::PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap();
    let attributes = other
        .attributes()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    node.records.0.insert(scope, (attributes.collect(), true));
    assert_eq!(node.left_out(&order()), none);
    node.unchanged();
}

#[test]
fn a_vm_of_other_cpus_than_the_recorded_ones_is_left_out() {
    let node = Node::new();
    for cpus in ["2-4", "4-5", "2"] {
        let mut order = order();
        order.vms.get_mut(POD).unwrap().cpus = set(cpus);
        order.shared = set("0-1");
        let reason = node.left_out(&order).unwrap();
        assert!(reason.contains("2-3 are recorded as its own"), "{reason}");
    }
    node.unchanged();
    let mut order = order();
    order.shared = set("1-2");
    let reason = node.refused((serde_json::to_string(&order).unwrap() + "\n").as_bytes());
    assert_eq!(reason, "the shared CPUs 2 are VMs'");
}

#[test]
fn a_vm_whose_record_is_ahead_of_the_order_keeps_what_it_has() {
    let mut node = Node::new();
    assert_eq!(node.left_out(&order()), None);
    let before = node.writes();
    assert!(before > 0);
    // CPU 3 is taken from it: the record says so first. The program ends and begins in between, as it does for each order here.
    node.records = Records::default();
    node.records.add(
        &Record {
            exclusive: set("2"),
            ..record()
        },
        true,
    );
    let reason = node.left_out(&order()).unwrap();
    assert!(reason.ends_with("on CPUs 2 stays"), "{reason}");
    assert_eq!(
        (node.value(&latency(2)), node.value(&latency(3))),
        ("20".to_owned(), "0".to_owned())
    );
    // A record that cannot be read is no reason either.
    let before = node.writes();
    for (attributes, _) in node.records.0.values_mut() {
        attributes.insert("schema".into(), "9".into());
    }
    assert!(node.left_out(&order()).unwrap().contains("stays"));
    assert_eq!(node.writes(), before);
    // It ended.
    node.records = Records::default();
    assert_eq!(node.left_out(&order()), Some("it has no live instance".to_owned()));
    assert_eq!(node.value(&latency(2)), "0");
}

#[test]
fn a_record_of_another_version_is_not_guessed_at() {
    let mut node = Node::new();
    for (attributes, _) in node.records.0.values_mut() {
        attributes.insert("schema".into(), "9".into());
    }
    let reason = node.left_out(&order()).unwrap();
    assert!(reason.contains("schema \"9\""), "{reason}");
}

#[test]
fn whoever_is_not_the_daemon_is_not_answered_nor_read() {
    let node = Node::new();
    let asked = Cell::new(0);
    let (mut client, server) = UnixStream::pair().unwrap();
    client
        .write_all((serde_json::to_string(&order()).unwrap() + "\n").as_bytes())
        .unwrap();
    let admit = |_: &UnixStream| {
        asked.set(asked.get() + 1);
        Err(ForeignPeer("a process of /x".into()))
    };
    node.admitting(&admit, |serving| {
        serving.attend(server);
        assert_eq!(serving.state.strangers.len(), 1);
        serving.attend(UnixStream::pair().unwrap().1);
        assert_eq!(serving.state.strangers.len(), 1);
    });
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert_eq!((answer, asked.get()), (Vec::new(), 2));
    node.unchanged();
}

#[test]
fn it_serves_one_after_the_other_and_ends_when_it_is_told_to_or_nothing_is_ordered() {
    let node = Node::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quiet.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (told, tell) = pipe().unwrap();
    let idle = Duration::from_millis(500);
    let daemon = thread::spawn({
        let path = path.clone();
        move || -> Vec<Result<Report, OrderError>> {
            let one = || client::order(&path, &order(), client::ANSWER_TIMEOUT);
            let mut wrong = order();
            wrong.shared = set("2");
            vec![one(), client::order(&path, &wrong, client::ANSWER_TIMEOUT), one()]
        }
    });
    let end = node
        .with(|serving| serving.serve(&listener, told.as_fd(), idle))
        .unwrap();
    assert_eq!(end, End::Idle);
    let answers = daemon.join().unwrap();
    assert!(
        matches!(&answers[..], [Ok(_), Err(OrderError::Refused(_)), Ok(_)]),
        "{answers:?}"
    );
    // One that waits is left to the next start.
    let _waits = UnixStream::connect(&path).unwrap();
    rustix::io::write(&tell, b"x").unwrap();
    let end = node
        .with(|serving| serving.serve(&listener, told.as_fd(), idle))
        .unwrap();
    assert_eq!(end, End::Stopped);
    listener.accept().unwrap();
}

/// The answer to this line.
fn asked(node: &Node, line: &str) -> Answer {
    serde_json::from_str(&node.said(format!("{line}\n").as_bytes())).unwrap()
}

#[test]
fn who_runs_on_a_vms_cpus_is_counted_between_two_lines() {
    let node = Node::new();
    node.kernel.tree().tracefs = Some(Tracefs::with(&["sched/sched_switch"]));
    let instances = || {
        let mut tree = node.kernel.tree();
        tree.tracefs.as_mut().unwrap().instances().len()
    };
    let finish = r#"{"attribute":{"finish":{}}}"#;
    let Answer::Refused(reason) = asked(&node, finish) else {
        panic!("answered")
    };
    assert!(reason.starts_with("nothing is counted"), "{reason}");
    let begun = asked(&node, r#"{"attribute":{"begin":{"cpus":"3","own":[7]}}}"#);
    assert_eq!((begun, instances()), (Answer::Begun, 1));
    let keys = "next_comm,common_cpu";
    node.kernel.tree().tracefs.as_mut().unwrap().count(
        "steliad-quiet",
        "sched/sched_switch",
        keys,
        &["intruder", "3"],
        4,
        None,
    );
    let Answer::Attributed(attribution) = asked(&node, finish) else {
        panic!("refused")
    };
    assert_eq!((attribution.cpus.as_str(), attribution.tasks[0].count), ("3", 4));
    assert_eq!(instances(), 0);
}

#[test]
fn a_count_that_nobody_waits_for_any_more_is_not_left_behind() {
    let node = Node::new();
    node.kernel.tree().tracefs = Some(Tracefs::with(&["sched/sched_switch"]));
    let instances = || node.kernel.tree().tracefs.as_mut().unwrap().instances().len();
    let begin = "{\"attribute\":{\"begin\":{\"cpus\":\"3\",\"own\":[7]}}}\n";
    node.said(begin.as_bytes());
    assert_eq!(instances(), 1);
    let (mut client, server) = UnixStream::pair().unwrap();
    client.write_all(begin.as_bytes()).unwrap();
    drop(client);
    node.with(|serving| serving.attend(server));
    assert_eq!(instances(), 0);
}

#[test]
fn only_cpus_of_live_instances_are_looked_at() {
    let mut node = Node::new();
    node.kernel.tree().tracefs = Some(Tracefs::with(&["sched/sched_switch"]));
    let line = |cpus: &str| format!(r#"{{"attribute":{{"begin":{{"cpus":"{cpus}","own":[7]}}}}}}"#);
    let reason = |node: &Node, cpus: &str| match asked(node, &line(cpus)) {
        Answer::Refused(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(&node, "2-4"), "the CPUs 4 are no VM's");
    assert_eq!(reason(&node, ""), "no CPUs are named");
    let own = r#"{"attribute":{"begin":{"cpus":"2","own":[0]}}}"#;
    assert_eq!(asked(&node, own), Answer::Refused("0 is no thread's number".into()));
    // It ended.
    node.records = Records::default();
    node.records.add(&record(), false);
    assert_eq!(reason(&node, "2"), "the CPUs 2 are no VM's");
    // In its container.
    let container = format!(
        "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{}.scope",
        POD.replace('-', "_"),
        "a".repeat(64)
    );
    let mut record = in_place();
    record.origin = CgroupPath::parse(&container).unwrap();
    (record.exclusive, record.spare) = (set("5"), CpuSet::new());
    node.records.add(&record, true);
    assert_eq!(reason(&node, "4-5"), "the CPUs 4 are no VM's");
    assert_eq!(asked(&node, &line("5")), Answer::Begun);
}
