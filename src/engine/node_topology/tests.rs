use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_kernel::cgroup::KernelCgroups;
use stelia_koordinator::report::numa;
use tempfile::TempDir;

use super::*;
use crate::engine::node_facts;

const GUARANTEED: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";
const BURSTABLE: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";
const STATIC: &str = "0123456789abcdef0123456789abcdef";
/// The pod of the recorded files.
const RECORDED: &str = "ce32ebd2-f905-449e-b74b-4231a84b88e1";

fn pod(uid: &str) -> PodUid {
    PodUid::parse(uid).unwrap()
}

const CHECKPOINTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kubelet-checkpoints");

/// A host's files below a folder.
struct Host(TempDir);

impl Host {
    /// Two NUMA nodes of 128 GiB, with these pods' cgroups.
    fn new(pods: &[&str]) -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for pod in pods {
            fs::create_dir_all(host.0.path().join("cgroup/kubepods").join(pod)).unwrap();
        }
        host.write("sys/devices/system/node/online", "0-1");
        for node in [0, 1] {
            let folder = format!("sys/devices/system/node/node{node}");
            host.write(&format!("{folder}/distance"), "10 21");
            host.write(
                &format!("{folder}/meminfo"),
                format!("Node {node} MemTotal: 134217728 kB\n"),
            );
        }
        host
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// One of kubelet's recorded files.
    fn record(&self, path: &str, recorded: &str) {
        self.write(path, fs::read(Path::new(CHECKPOINTS).join(recorded)).unwrap());
    }

    fn facts(&self, view: &model::Node) -> Facts {
        let root = self.0.path();
        let nodes = numa::read(&root.join("sys")).unwrap();
        let mut facts = node_facts(view, None, nodes, "n".to_owned()).unwrap();
        let cgroups = KernelCgroups::new(root.join("cgroup"));
        let places = Places {
            cgroups: &cgroups,
            root,
            kubelet: &root.join("kubelet"),
        };
        complete(&mut facts, view, places);
        facts
    }
}

/// Eight CPUs, of which kubelet gave one pod two.
fn view() -> model::Node {
    let topology = Shape {
        nodes: 2,
        cores: 2,
        threads: 2,
        interleaved: false,
    };
    let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
    model::Node {
        topology: topology.topology().into(),
        pool: Some(cpus("0-1,4-7")),
        entries: BTreeMap::from([(pod(GUARANTEED), BTreeMap::from([("vm".to_owned(), cpus("2-3"))]))]).into(),
        kubelet_cpus: cpus("2-3"),
        ..model::Node::default()
    }
}

fn names(facts: &Facts) -> Vec<(String, Option<String>, bool)> {
    let pods = facts.pods.iter().flatten();
    let told = pods.map(|(uid, pod)| {
        (
            uid.to_string(),
            pod.name.as_ref().map(ToString::to_string),
            pod.exclusive,
        )
    });
    told.collect()
}

#[test]
fn pods_are_those_with_a_cgroup_and_are_called_as_their_logs() {
    let host = Host::new(&[
        &format!("pod{GUARANTEED}"),
        &format!("pod{STATIC}"),
        &format!("burstable/pod{BURSTABLE}"),
    ]);
    for directory in [
        format!("team-a_vm_{GUARANTEED}"),
        format!("kube-system_etcd-n_{STATIC}"),
        // Two for one pod name nobody; the last pod has ended.
        format!("team-a_web_{BURSTABLE}"),
        format!("team-b_web_{BURSTABLE}"),
        format!("team-a_gone_{RECORDED}"),
        "no pod".to_owned(),
    ] {
        fs::create_dir_all(host.0.path().join("var/log/pods").join(directory)).unwrap();
    }
    let facts = host.facts(&view());
    let named = |uid: &str, name: Option<&str>, exclusive| (uid.to_owned(), name.map(str::to_owned), exclusive);
    let expected = [
        named(STATIC, Some("kube-system/etcd-n"), true),
        named(GUARANTEED, Some("team-a/vm"), true),
        named(BURSTABLE, None, false),
    ];
    assert_eq!(names(&facts), expected);
    assert_eq!(facts.allocations[0].name.as_ref().unwrap().to_string(), "team-a/vm");
    assert_eq!(facts.problems, Vec::<String>::new());
}

#[test]
fn the_runtimes_name_of_an_instance_goes_before_its_logs() {
    let host = Host::new(&[&format!("pod{GUARANTEED}")]);
    fs::create_dir_all(host.0.path().join(format!("var/log/pods/team-a_old_{GUARANTEED}"))).unwrap();
    let mut view = view();
    let mut instance = crate::engine::registered(pod(GUARANTEED));
    instance.pod_name = PodName::new("team-a", "vm");
    view.instances.insert(pod(GUARANTEED), instance.into());
    assert_eq!(host.facts(&view).allocations[0].name, PodName::new("team-a", "vm"));
}

#[test]
fn memory_is_what_kubelets_record_leaves_of_it() {
    const RECORD: &str = "k136-gate-on/03b-many/memory_manager_state";
    let first = "11111111-aaaa-4bbb-8ccc-000000000001";
    let state = MemoryManagerState::parse(&fs::read(Path::new(CHECKPOINTS).join(RECORD)).unwrap()).unwrap();
    let all: Vec<String> = state.entries.keys().map(|pod| format!("pod{pod}")).collect();
    let host = Host::new(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let before = host.facts(&view()).numa[&0].memory.unwrap();
    assert_eq!((before.reserved, before.assigned), (0, 0));
    host.record(
        "kubelet/memory_manager_state",
        "k136-gate-on/03b-many/memory_manager_state",
    );
    let memory = host.facts(&view()).numa[&0].memory.unwrap();
    assert_eq!(memory.assigned, 15_032_385_536);
    assert_eq!(memory.total - memory.reserved, 18_790_481_920);
    // The first pod ends: 1 + 4 + 1 GiB are free for the next one, whatever kubelet still has.
    fs::remove_dir(host.0.path().join(format!("cgroup/kubepods/pod{first}"))).unwrap();
    assert_eq!(
        host.facts(&view()).numa[&0].memory.unwrap().assigned,
        15_032_385_536 - (6 << 30)
    );
}

#[test]
fn memory_that_nobody_can_account_for_is_not_reported() {
    let host = Host::new(&[]);
    host.write("kubelet/memory_manager_state", "no JSON");
    let facts = host.facts(&view());
    assert!(
        facts
            .numa
            .values()
            .all(|node| node.memory.is_none() && node.huge_pages.is_empty())
    );
    assert!(facts.numa.values().all(|node| node.distances.len() == 2));
    assert!(facts.problems[0].contains("memory_manager"), "{:?}", facts.problems);
    assert_eq!(facts.warnings(), facts.problems);
}

#[test]
fn devices_come_from_kubelets_record_and_from_sys() {
    let host = Host::new(&[&format!("burstable/pod{RECORDED}")]);
    host.record(
        "kubelet/device-plugins/kubelet_internal_checkpoint",
        "k136-gate-off/08-device/kubelet_internal_checkpoint",
    );
    // Of one of the GPUs nothing says where it is, and KVM is nowhere.
    let facts = host.facts(&view());
    assert!(facts.devices.is_empty());
    assert_eq!(names(&facts), [(RECORDED.to_owned(), None, false)]);
    host.write("kubelet/device-plugins/kubelet_internal_checkpoint", "no JSON");
    assert!(host.facts(&view()).problems[0].contains("kubelet_internal_checkpoint"));
}

#[test]
fn a_configuration_that_cannot_be_read_is_not_replaced_by_kubelets_defaults() {
    let config = KubeletConfig::default();
    assert_eq!(usable(Ok(Some(&config)), CpuSource::Kubelet), Ok((Some(&config), None)));
    assert_eq!(usable(Ok(None), CpuSource::Kubelet), Ok((None, None)));
    let problem = "kubelet's configuration cannot be used: kubelet would not start: k.yaml".to_owned();
    let unread = "kubelet would not start: k.yaml";
    assert_eq!(usable(Err(unread), CpuSource::Kubelet), Err(problem.clone()));
    assert_eq!(usable(Err(unread), CpuSource::Steliad), Ok((None, Some(problem))));
}
