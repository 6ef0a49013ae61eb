//! GPU instances: hints of devices, CPUs and memory together, under every policy of the Topology Manager. The described machines are in
//! `tests/data/plan`; `STELIA_WRITE_DOCS=1 cargo test -p steliactl the_machines_with_gpus` writes them.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const FOLDER: &str = "../../tests/data/plan";
/// The configuration for hosts of GPU instances that is shipped.
const CONFIG: &str = "../../packaging/kubernetes/kubelet-config-best-effort.yaml";
/// Two sockets of 32 cores, as in `kubelet-config-best-effort.yaml`; two of 64; eight of 8 cores.
const MACHINES: [(&str, u32, u32); 3] = [("gpu-32", 2, 32), ("gpu-64", 2, 64), ("gpu-8", 8, 8)];

fn machine(name: &str, nodes: u32, cores: u32) -> Facts {
    let shape = Shape {
        nodes,
        cores,
        threads: 2,
        interleaved: true,
    };
    let topology = shape.topology();
    let pages = |total| numa::Pages {
        total,
        reserved: 0,
        free: total,
    };
    let numa = |id: u32| {
        let described = numa::KernelNumaNode {
            distances: (0..nodes)
                .map(|other| (other, if other == id { 10 } else { 32 }))
                .collect(),
            memory: Some(numa::NumaMemory {
                total: 128 << 30,
                ..numa::NumaMemory::default()
            }),
            huge_pages: [(2 << 20, pages(55_296))].into(),
        };
        (id, described)
    };
    Facts {
        name: name.to_owned(),
        numa: (0..nodes).map(numa).collect(),
        reserved: CpuSet::new(),
        exclusive: CpuSet::new(),
        shared: topology.online(),
        topology,
        allocations: Vec::new(),
        containers: BTreeSet::new(),
        kubelet: Kubelet {
            cpu_policy: "none".to_owned(),
            ..Kubelet::default()
        },
        allocator: None,
        pods: None,
        devices: BTreeMap::new(),
        problems: Vec::new(),
    }
}

/// The same with a pod that has these CPUs.
fn with_pod(mut facts: Facts, cpus: &CpuSet) -> Facts {
    facts.exclusive = cpus.clone();
    facts.shared = facts.topology.online().difference(cpus);
    facts.allocations = vec![PodAllocation {
        pod: PodUid::parse(OTHER).unwrap(),
        name: None,
        cpus: cpus.clone(),
        by_kubelet: true,
    }];
    facts
}

fn printed(facts: &Facts) -> String {
    serde_json::to_string(&report(facts, ApiVersion::V1Alpha2)).unwrap() + "\n"
}

#[test]
fn the_machines_with_gpus_are_described() {
    for (name, nodes, cores) in MACHINES {
        let path = Path::new(FOLDER).join(format!("{name}.json"));
        let text = printed(&machine(name, nodes, cores));
        if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == text, "{}: STELIA_WRITE_DOCS=1", path.display());
    }
}

/// The machine with this many CPUs left to give on each NUMA node, and these CPUs reserved.
struct Scene {
    folder: TempDir,
    reserved: &'static str,
}

impl Scene {
    fn new(number: usize, reserved: &'static str, left: &[usize]) -> Self {
        let (name, nodes, cores) = MACHINES[number];
        let facts = machine(name, nodes, cores);
        let reserved_cpus = set(reserved);
        let mut taken = CpuSet::new();
        for (node, left) in (0..nodes).zip(left) {
            let here = facts.topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
            let here: CpuSet = here.map(|(number, _)| *number).collect();
            let open = here.difference(&reserved_cpus);
            // Whole cores are left: the first ones.
            let keep: CpuSet = open
                .iter()
                .take(left / 2)
                .flat_map(|cpu| facts.topology.siblings(cpu).iter().collect::<Vec<_>>())
                .collect();
            taken.union_with(&open.difference(&keep));
        }
        let folder = TempDir::new().unwrap();
        let facts = if taken.is_empty() {
            facts
        } else {
            with_pod(facts, &taken)
        };
        write(folder.path(), "node.json", &printed(&facts));
        Self { folder, reserved }
    }

    /// The configuration that is shipped, with this policy and scope.
    fn config(&self, policy: &str, scope: &str) -> PathBuf {
        let text = fs::read_to_string(CONFIG).unwrap();
        let replaced = text
            .replace(
                "reservedSystemCPUs: \"0,64\"",
                &format!("reservedSystemCPUs: \"{}\"", self.reserved),
            )
            .replace(
                "topologyManagerPolicy: best-effort",
                &format!("topologyManagerPolicy: {policy}"),
            )
            .replace("topologyManagerScope: pod", &format!("topologyManagerScope: {scope}"));
        let path = self.folder.path().join("kubelet.yaml");
        fs::write(&path, replaced).unwrap();
        path
    }

    fn plan(&self, policy: &str, scope: &str, words: &[&str]) -> String {
        let (node, config) = (self.folder.path().join("node.json"), self.config(policy, scope));
        let files = [
            "--node",
            node.to_str().unwrap(),
            "--kubelet-config",
            config.to_str().unwrap(),
        ];
        match steliactl(Path::new("/nowhere"), &[&files, words].concat()) {
            Ok(text) => text,
            Err(Failure::Partial { printed, .. }) => printed,
            Err(other) => panic!("{other}"),
        }
    }

    /// The answers under all policies and scopes.
    fn sweep(&self, words: &[&str]) -> String {
        let policies = ["best-effort", "restricted", "single-numa-node"];
        let scoped = policies
            .iter()
            .flat_map(|policy| ["container", "pod"].map(|scope| (*policy, scope)));
        let all = [("none", "container")].into_iter().chain(scoped);
        all.map(|(policy, scope)| self.plan(policy, scope, words))
            .collect::<Vec<_>>()
            .join("\n---\n")
    }
}

const INSTANCE: &str = "name=instance,cpus=40,memory=2Gi,hugepages-2Mi=80Gi,nvidia.com/gpu=2";

/// The machine on which the configuration was first used: the instance has the CPUs that kubelet gave it there.
#[test]
fn an_instance_of_40_cpus_is_on_one_socket_with_its_gpus() {
    let scene = Scene::new(0, "0,64", &[]);
    let text = scene.plan(
        "best-effort",
        "pod",
        &["-c", INSTANCE, "--devices", "nvidia.com/gpu=0:4,1:4"],
    );
    assert!(text.contains("1-20,65-84"), "{text}");
    insta::assert_snapshot!(text);
}

/// 2 x 64 x 2 CPUs, 8 GPUs: free are GPUs at one socket and CPUs at the other.
#[test]
fn each_policy_says_whether_gpu_and_cpus_meet_on_two_sockets() {
    let scene = Scene::new(1, "0,128", &[10, 126]);
    let helper = "name=proxy,kind=sidecar,cpus=2,memory=1Gi";
    let words = ["-c", helper, "-c", INSTANCE, "--devices", "nvidia.com/gpu=0:3/4,1:0/4"];
    insta::assert_snapshot!(scene.sweep(&words));
}

/// Where both are free at one socket, it is chosen although the other has more of each.
#[test]
fn what_if_compares_where_the_gpus_are() {
    let scene = Scene::new(1, "0,128", &[100, 60]);
    let words = ["-c", INSTANCE, "--devices", "nvidia.com/gpu=0:1/4,1:2/4", "--what-if"];
    insta::assert_snapshot!(scene.plan("best-effort", "pod", &words));
}

/// A GPU at each of eight NUMA nodes, of which two are free: 20 CPUs and two GPUs need two nodes, and their memory would fit on one. So no NUMA
/// nodes are preferred by all, and kubelet takes the lowest two.
#[test]
fn each_policy_says_whether_gpus_and_cpus_meet_on_eight_sockets() {
    let scene = Scene::new(2, "0,64", &[14, 16, 16, 16, 16, 4, 16, 16]);
    let devices = "nvidia.com/gpu=0:0/1,1:1,2:0/1,3:0/1,4:0/1,5:1,6:0/1,7:0/1";
    let two = "name=instance,cpus=20,memory=2Gi,hugepages-2Mi=40Gi,nvidia.com/gpu=2";
    let one = "name=instance,cpus=8,memory=2Gi,nvidia.com/gpu=1";
    let small = scene.plan("best-effort", "pod", &["-c", one, "--devices", devices]);
    let large = scene.sweep(&["-c", two, "--devices", devices]);
    insta::assert_snapshot!(format!("{small}\n---\n{large}"));
}

#[test]
fn a_pod_beside_another_on_the_last_gpu_is_not_admitted() {
    let scene = Scene::new(1, "0,128", &[]);
    let words = [
        "-c",
        INSTANCE,
        "--until-full",
        "--devices",
        "nvidia.com/gpu=0:4,1:1/4",
        "-o",
        "json",
    ];
    let answer: Value = serde_json::from_str(&scene.plan("best-effort", "pod", &words)).unwrap();
    assert_eq!(answer["until_full"]["count"], 2);
    assert_eq!(answer["containers"][0]["locality"], "one-node");
    let hints = &answer["merges"][0]["hints"][0];
    assert_eq!(
        (&hints["resource"], &hints["preferred"]),
        (&json!(DEVICE), &json!(["0"]))
    );
    assert_eq!(
        hints["free"],
        json!([{"node": 0, "amount": 4}, {"node": 1, "amount": 1}])
    );
}

/// 64 CPUs are on one NUMA node of this machine, and 62 of them can be given to a container.
#[test]
fn reserved_cpus_are_not_counted_as_room() {
    let scene = Scene::new(0, "0,32,64,96", &[]);
    let instance = "name=instance,cpus=64,memory=2Gi,nvidia.com/gpu=1";
    let words = ["-c", instance, "--devices", "nvidia.com/gpu=0:4,1:4", "-o", "json"];
    let answer: Value = serde_json::from_str(&scene.plan("best-effort", "pod", &words)).unwrap();
    let container = &answer["containers"][0];
    assert_eq!(
        (&container["numa_nodes"], &container["locality"]),
        (&json!("0-1"), &json!("same-nodes")),
        "{answer}"
    );
    let devices = &container["devices"][0];
    assert_eq!(
        (&devices["count"], &devices["ids"]),
        (&json!(1), &json!([])),
        "the planner made the ids up"
    );
}

#[test]
fn words_and_files_that_do_not_fit_are_told() {
    let scene = Scene::new(0, "0,64", &[]);
    // Memory that is reserved for nobody.
    let config = scene.config("best-effort", "pod");
    let text = fs::read_to_string(&config)
        .unwrap()
        .replace("memory: \"2Gi\"\nsystem", "memory: \"3Gi\"\nsystem");
    fs::write(&config, text).unwrap();
    let node = scene.folder.path().join("node.json");
    let line = |config: &Path| {
        let words = [
            "--node",
            node.to_str().unwrap(),
            "--kubelet-config",
            config.to_str().unwrap(),
        ];
        refused(
            Path::new("/nowhere"),
            &[&words[..], &["-c", "cpus=2,memory=1Gi"]].concat(),
        )
        .1
    };
    assert!(line(&config).contains("kubelet would not start: "), "{}", line(&config));
    fs::write(&config, "kind: Pod").unwrap();
    assert!(line(&config).contains("kubelet.yaml"), "{}", line(&config));
    for wrong in [
        &["plan", "-c", "cpus=1", "--devices", "gpu=0:1"][..],
        &["plan", "-c", "cpus=1", "--kubelet-config", "a.yaml"],
    ] {
        assert!(
            Cli::try_parse_from([&["steliactl"], wrong].concat()).is_err(),
            "{wrong:?}"
        );
    }
}

/// The NUMA nodes of free devices whose ids are PCI addresses are those that the kernel tells.
#[test]
fn the_places_of_pci_devices_are_read_on_this_node() {
    let node = node(&format!("{STATIC}topologyManagerPolicy: single-numa-node\n"));
    let text = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"example.com/nic":["0000:3b:00.0"]}},"Checksum":CHECKSUM}"#;
    let wrong = stelia_kubelet::DeviceManagerState::parse(text.replace("CHECKSUM", "1").as_bytes());
    let wrong = wrong.unwrap_err().to_string();
    let right = wrong.split("gives ").nth(1).unwrap();
    let right: String = right.chars().take_while(char::is_ascii_digit).collect();
    let file = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
    write(node.path(), file, &text.replace("CHECKSUM", &right));
    write(node.path(), "sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi,example.com/nic=1"]);
    let container = &answer["containers"][0];
    assert_eq!(
        (&container["numa_nodes"], &container["locality"]),
        (&json!("1"), &json!("one-node")),
        "{answer}"
    );
    assert_eq!(container["devices"][0]["numa_nodes"], "1");
    assert!(
        !answer["assumed"]
            .to_string()
            .contains("NUMA nodes of unassigned devices"),
        "{answer}"
    );
}
