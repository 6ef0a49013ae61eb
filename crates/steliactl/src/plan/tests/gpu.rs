//! GPU instances: hints of devices, CPUs and memory together, under every policy of the Topology Manager. The described machines are in
//! `tests/data/plan`; `STELIA_WRITE_DOCS=1 cargo test -p steliactl the_machines_with_gpus` writes them.

use super::*;

const FOLDER: &str = "../../tests/data/plan";
/// The configuration for hosts of GPU instances that is shipped.
const CONFIG: &str = "../../packaging/kubernetes/kubelet-config-best-effort.yaml";
/// Two sockets of 32 cores, as in `kubelet-config-best-effort.yaml`; two of 64; eight of 8 cores.
const MACHINES: [(&str, u32, u32); 3] = [("gpu-32", 2, 32), ("gpu-64", 2, 64), ("gpu-8", 8, 8)];
const INSTANCE: &str = "-c name=instance,cpus=40,memory=2Gi,hugepages-2Mi=80Gi,nvidia.com/gpu=2";

fn machine(name: &str, nodes: u32, cores: u32) -> Facts {
    let pages = numa::Pages {
        total: 55_296,
        reserved: 0,
        free: 55_296,
    };
    let memory = numa::NumaMemory {
        total: 128 << 30,
        ..numa::NumaMemory::default()
    };
    let numa = |id: u32| {
        let distance = |other: u32| (other, if other == id { 10 } else { 32 });
        let described = numa::KernelNumaNode {
            distances: (0..nodes).map(distance).collect(),
            memory: Some(memory),
            huge_pages: [(2 << 20, pages)].into(),
        };
        (id, described)
    };
    Facts {
        numa: (0..nodes).map(numa).collect(),
        ..facts(name, shape(nodes, cores))
    }
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

/// A described machine with reserved CPUs, and kubelet's configuration for it.
struct Scene {
    folder: TempDir,
    reserved: &'static str,
}

impl Scene {
    /// With this many CPUs left to give on each NUMA node; on one that is not named all are.
    fn new(number: usize, reserved: &'static str, left: &[usize]) -> Self {
        let (name, nodes, cores) = MACHINES[number];
        let mut facts = machine(name, nodes, cores);
        let reserved_cpus = set(reserved);
        let mut taken = CpuSet::new();
        for (node, left) in (0..nodes).zip(left) {
            let here = facts.topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
            let here: CpuSet = here.map(|(number, _)| *number).collect();
            let open = here.difference(&reserved_cpus);
            // Whole cores are left: the first ones.
            let first = open.iter().take(left / 2);
            let siblings = first.flat_map(|cpu| facts.topology.siblings(cpu).iter().collect::<Vec<_>>());
            taken.union_with(&open.difference(&siblings.collect()));
        }
        if !taken.is_empty() {
            facts.shared = facts.topology.online().difference(&taken);
            facts.allocations = given(&taken);
            facts.exclusive = taken;
        }
        let folder = TempDir::new().unwrap();
        write(folder.path(), "node.json", printed(&facts));
        Self { folder, reserved }
    }

    /// The words for the machine, and for a kubelet with the configuration that is shipped and this policy and scope.
    fn words(&self, policy: &str, scope: &str) -> String {
        let mut config = fs::read_to_string(CONFIG).unwrap();
        for (shipped, value) in [
            (
                "reservedSystemCPUs: \"0,64\"",
                format!("reservedSystemCPUs: \"{}\"", self.reserved),
            ),
            (
                "topologyManagerPolicy: best-effort",
                format!("topologyManagerPolicy: {policy}"),
            ),
            ("topologyManagerScope: pod", format!("topologyManagerScope: {scope}")),
        ] {
            config = config.replace(shipped, &value);
        }
        let folder = self.folder.path();
        write(folder, "kubelet.yaml", config);
        format!(
            "--node {0}/node.json --kubelet-config {0}/kubelet.yaml",
            folder.display()
        )
    }

    /// With the shipped policy and scope.
    fn answer(&self, line: &str) -> Value {
        let words = self.words("best-effort", "pod");
        answered(Path::new("/nowhere"), &format!("{words} {line}"))
    }

    /// With each policy and scope: whether CPUs and devices are together, or `rejected`.
    fn sweep(&self, line: &str) -> String {
        let policies = ["best-effort", "restricted", "single-numa-node"];
        let scoped = policies
            .iter()
            .flat_map(|policy| ["container", "pod"].map(|scope| (*policy, scope)));
        let cases = [("none", "container")].into_iter().chain(scoped);
        let told = cases.map(|(policy, scope)| {
            let words = self.words(policy, scope);
            let answer = answered(Path::new("/nowhere"), &format!("{words} {line}"));
            let containers = answer["containers"].as_array().unwrap();
            let row = containers.iter().find(|row| row["container"] == "instance");
            row.map_or("rejected".to_owned(), |row| {
                let text = |member: &Value| member.as_str().unwrap_or("-").to_owned();
                format!("{} {}", text(&row["numa_nodes"]), text(&row["locality"]["verdict"]))
            })
        });
        told.collect::<Vec<_>>().join(", ")
    }
}

/// The machine on which the configuration was first used: the instance has the CPUs that kubelet gave it there.
#[test]
fn an_instance_of_40_cpus_is_on_one_socket_with_its_gpus() {
    let scene = Scene::new(0, "0,64", &[]);
    let words = scene.words("best-effort", "pod");
    let text = told(
        Path::new("/nowhere"),
        &format!("{words} {INSTANCE} --devices nvidia.com/gpu=0:4,1:4"),
    );
    says(&text, &["1-20,65-84"]);
    insta::assert_snapshot!(text);
}

/// A GPU at each of eight NUMA nodes, of which two are free: 20 CPUs and two GPUs need two nodes, and their memory would fit on one. So no NUMA
/// nodes are preferred by all, and kubelet takes the lowest two.
#[test]
fn each_policy_says_whether_gpus_and_cpus_meet_on_eight_sockets() {
    let scene = Scene::new(2, "0,64", &[14, 16, 16, 16, 16, 4, 16, 16]);
    let devices = "--devices nvidia.com/gpu=0:0/1,1:1,2:0/1,3:0/1,4:0/1,5:1,6:0/1,7:0/1";
    let two = "-c name=instance,cpus=20,memory=2Gi,hugepages-2Mi=40Gi,nvidia.com/gpu=2";
    let one = "-c name=instance,cpus=8,memory=2Gi,nvidia.com/gpu=1";
    let small = scene.answer(&format!("{one} {devices}"));
    holds(
        &small["containers"][0],
        json!({"/numa_nodes": "1", "/locality/verdict": "one-node"}),
    );
    let rejected = "rejected, rejected, rejected, rejected";
    assert_eq!(
        scene.sweep(&format!("{two} {devices}")),
        format!("1,5 apart, 0-1 apart, 0-1 apart, {rejected}")
    );
}

#[test]
fn a_pod_beside_another_on_the_last_gpu_is_not_admitted() {
    let scene = Scene::new(1, "0,128", &[]);
    let answer = scene.answer(&format!("{INSTANCE} --until-full --devices nvidia.com/gpu=0:4,1:1/4"));
    holds(
        &answer,
        json!({
            "/until_full/count": 2, "/containers/0/locality/verdict": "one-node", "/free/nvidia.com~1gpu": {"0": 4, "1": 1},
        }),
    );
}

#[test]
fn a_configuration_that_does_not_fit_is_told() {
    let scene = Scene::new(0, "0,64", &[]);
    let line = format!("{} {TWO}", scene.words("best-effort", "pod"));
    let reason = || refused(Path::new("/nowhere"), &line).1;
    // Memory that is reserved for nobody.
    let config = scene.folder.path().join("kubelet.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace("memory: \"2Gi\"\nsystem", "memory: \"3Gi\"\nsystem"),
    )
    .unwrap();
    says(&reason(), &["kubelet would not start: "]);
    fs::write(&config, "kind: Pod").unwrap();
    says(&reason(), &["kubelet.yaml"]);
}
