use rstest::rstest;
use stelia_cpus::testing::Shape;
use stelia_kubelet::config::{File, Flags};

use super::*;
use crate::node::NumaNode;

/// What `kubelet --config` of these keys has wrong, on a machine with two NUMA nodes of 8 GiB and eight CPUs each.
fn wrong(keys: &str) -> Vec<String> {
    let machine = machine();
    let config = config(keys);
    let found = problems(&config, Some(&machine));
    found.iter().map(ToString::to_string).collect()
}

fn config(keys: &str) -> KubeletConfig {
    let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{keys}");
    let file = File::parse(&text, "config.yaml").unwrap();
    KubeletConfig::new(Some(file), Vec::new(), Flags::default()).unwrap()
}

fn machine() -> Machine {
    let numa = |_| NumaNode {
        memory: 8 << 30,
        ..NumaNode::default()
    };
    crate::testing::machine(Shape::new(2, 4, 2), numa)
}

const STATIC: &str = "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
const MEMORY: &str = "memoryManagerPolicy: Static\nkubeReserved: {memory: 1Gi}\nsystemReserved: {memory: 512Mi}\n";

#[rstest]
#[case("")]
#[case("cpuManagerPolicy: static\nkubeReserved: {cpu: 100m}\n")]
#[case("cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\nkubeReserved: {cpu: much}\n")]
#[case(
    "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ncpuManagerPolicyOptions: {align-by-socket: \"true\"}\nfeatureGates: {CPUManagerPolicyAlphaOptions: true}\n"
)]
#[case("topologyManagerPolicyOptions: {nonsense: \"1\"}\n")]
#[case("memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n")]
#[case(
    "memoryManagerPolicy: Static\nevictionHard: {memory.available: 5%}\nreservedMemory: [{numaNode: 1, limits: {memory: 858993472}}]\n"
)]
#[case(
    "memoryManagerPolicy: Static\nevictionHard: {memory.available: 0%}\nkubeReserved: {memory: 1Gi}\nreservedMemory: [{numaNode: 1, limits: {memory: 512Mi}}, {numaNode: 0, limits: {memory: 512Mi}}]\n"
)]
#[case("cgroupsPerQOS: false\nenforceNodeAllocatable: [none]\n")]
#[case("cgroupsPerQOS: false\nenforceNodeAllocatable: []\n")]
#[case("enforceNodeAllocatable: [pods, kube-reserved-compressible]\nkubeReservedCgroup: /kube\n")]
#[case("featureGates: {AllAlpha: true, PodLevelResourceManagers: true, CPUManager: true}\n")]
fn with_these_it_starts(#[case] keys: &str) {
    assert_eq!(wrong(keys), Vec::<String>::new());
}

#[rstest]
#[case("cpuManagerPolicy: static\n", "cpuManagerPolicy static needs CPUs that are reserved")]
#[case("cpuManagerPolicy: static\nkubeReserved: {memory: 1Gi}\n", "greater than zero")]
#[case("cpuManagerPolicy: dynamic\n", "is \"dynamic\", and kubelet has none, static")]
#[case("memoryManagerPolicy: static\n", "is \"static\", and kubelet has None, Static")]
#[case(
    "topologyManagerPolicy: strict\n",
    "topologyManagerPolicy is \"strict\", and kubelet has none, best-effort, restricted, single-numa-node"
)]
#[case("topologyManagerScope: node\n", "topologyManagerScope is \"node\"")]
#[case("cgroupsPerQOS: false\n", "pods does not go with cgroupsPerQOS: false")]
#[case("enforceNodeAllocatable: [pods, pods]\n", "pods is there twice")]
#[case("enforceNodeAllocatable: [none, pods]\n", "none does not go with other entries")]
#[case("enforceNodeAllocatable: [pod]\n", "there is no pod, kubelet has pods, ")]
#[case("enforceNodeAllocatable: [system-reserved]\n", "needs systemReservedCgroup")]
#[case(
    "enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /kube\n",
    "kube-reserved does not go with kube-reserved-compressible"
)]
#[case(
    "cpuManagerPolicyOptions: {full-pcpus-only: \"false\"}\n",
    "the policy none has no options, and full-pcpus-only is given"
)]
#[case("reservedSystemCPUs: 0,99\n", "this node has no CPUs 99 online")]
#[case(
    "reservedSystemCPUs: \"0\"\nsystemReservedCgroup: /system.slice\n",
    "does not go with systemReservedCgroup"
)]
#[case("kubeReserved: {cpu: much}\n", "kubeReserved.cpu: \"much\" is not a quantity")]
#[case("systemReserved: {memory: -1Gi}\n", "systemReserved.memory: \"-1Gi\" is negative")]
#[case("systemReserved: {hugepages-2Mi: 1Gi}\n", "hugepages-2Mi: it cannot be reserved")]
#[case("evictionHard: {memory.free: 1Gi}\n", "memory.free: there is no such signal")]
#[case("evictionHard: {memory.available: 110%}\n", "available: \"110%\" is not between")]
#[case("evictionHard: {memory.available: \"0\"}\n", "is not more than nothing")]
#[case(
    "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {nonsense: \"1\"}\n",
    "nonsense"
)]
#[case(
    "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {max-allowable-numa-nodes: \"7\"}\n",
    "at least 8"
)]
#[case(
    "featureGates: {CPUManagerPolicyAlphaOption: true}\n",
    "no gate CPUManagerPolicyAlphaOption (did you mean CPUManagerPolicyAlphaOptions?)"
)]
#[case("featureGates: {CPUManagerPolicyOptions: false}\n", "PolicyOptions is on for good")]
#[case(
    "featureGates: {PodLevelResourceManagers: true, PodLevelResources: false, InPlacePodLevelResourcesVerticalScaling: false}\n",
    "PodLevelResourceManagers is on and needs PodLevelResources, which is off"
)]
fn without_any_other_fault_this_one_is_found(#[case] keys: &str, #[case] reason: &str) {
    let found = wrong(keys);
    assert!(found.len() == 1 && found[0].contains(reason), "{found:?}");
}

#[rstest]
#[case("{full-pcpus: \"true\"}", "full-pcpus")]
#[case("{full-pcpus-only: \"yes\"}", "bad value")]
#[case(
    "{full-pcpus-only: \"true\", distribute-cpus-across-cores: \"true\"}",
    "can not be used at the same time"
)]
#[case(
    "{align-by-socket: \"false\"}",
    "align-by-socket (alpha 1.25) needs the feature gate CPUManagerPolicyAlphaOptions in 1.36"
)]
fn an_option_of_the_static_policy_is_looked_at(#[case] options: &str, #[case] reason: &str) {
    let found = wrong(&format!("{STATIC}cpuManagerPolicyOptions: {options}\n"));
    assert!(found.iter().any(|found| found.contains(reason)), "{found:?}");
}

#[rstest]
#[case(
    "",
    r#"the total amount "0" of type "memory" is not equal to the value "1715470336" determined"#
)]
#[case("{numaNode: 0, limits: {memory: 1536Mi}}", "1610612736 bytes of memory in sum")]
#[case(
    "{numaNode: 0, limits: {memory: 1636Mi, hugepages-2Mi: 2Gi}}",
    "2147483648 bytes of hugepages-2Mi in sum"
)]
#[case("{numaNode: 2, limits: {memory: 1636Mi}}", "this node has no NUMA node 2")]
#[case("{numaNode: -1, limits: {memory: 1636Mi}}", "this node has no NUMA node -1")]
#[case(
    "{numaNode: 0, limits: {memory: 1636Mi}}, {numaNode: 0, limits: {memory: 1Gi}}",
    "NUMA node 0, memory: it is there twice"
)]
#[case("{numaNode: 0, limits: {memory: 1636Mi, cpu: 1}}", "neither memory nor huge pages")]
#[case("{numaNode: 0, limits: {memory: 1636Mi, hugepages-2Mi: 0}}", "must not be zero")]
fn reserved_memory_has_to_come_to_what_is_reserved(#[case] blocks: &str, #[case] reason: &str) {
    let found = wrong(&format!("{MEMORY}reservedMemory: [{blocks}]\n"));
    assert!(found.iter().any(|found| found.contains(reason)), "{found:?}");
}

#[test]
fn nothing_reserved_at_all_is_no_reservation() {
    let found = wrong("memoryManagerPolicy: Static\nevictionHard: {}\n");
    assert!(
        found.len() == 1 && found[0].contains("system reserved memory"),
        "{found:?}"
    );
}

#[test]
fn more_numa_nodes_than_allowed_are_told_unless_there_is_no_policy() {
    let mut machine = machine();
    machine.numa = (0..9).map(|id| (id, NumaNode::default())).collect();
    let found = |keys: &str| problems(&config(keys), Some(&machine));
    let expected = StartProblem::NumaNodes { nodes: 9, most: 8 };
    assert_eq!(found("topologyManagerPolicy: restricted\n"), [expected]);
    assert_eq!(found(""), []);
}

#[test]
fn a_gate_that_is_like_no_other_may_be_another_versions() {
    let gates = unknown_gates(&config(
        "featureGates: {CPUManager: true, PodLevelResources: true, CPUManagerPolicyBetaOption: true}\n",
    ));
    assert!(gates.len() == 1 && gates[0].contains("no gate CPUManager"), "{gates:?}");
}

#[test]
fn gates_of_older_kubelets_and_of_openshift_are_like_no_gate_of_1_36() {
    let others = "TopologyManager MemoryManager CPUManager DevicePlugins DynamicKubeletConfig CSIMigrationAWS \
        ExpandCSIVolumes DownwardAPIHugePages APIPriorityAndFairness ServiceNodeExclusion \
        LegacyNodeRoleBehavior NodeDisruptionExclusion AlibabaPlatform AdminNetworkPolicy \
        ExternalCloudProvider OpenShiftPodSecurityAdmission GatewayAPI MachineConfigNodes \
        EphemeralContainers GRPCContainerProbe SupportPodPidsLimit CronJobTimeZone KubeletPodResources \
        IPv6DualStack";
    for gate in others.split_whitespace() {
        assert_eq!((is_unknown(gate), like(gate)), (true, None), "{gate}");
    }
}

#[test]
fn the_gates_of_the_features_are_known() {
    for feature in FEATURES.iter().filter_map(|feature| feature.gate(KUBELET)) {
        assert!(gates::ALL_GATES.contains(&feature.name), "{feature:?}");
    }
    let others = gates::LOCKED.iter().chain(gates::DEFAULTS.iter().map(|(gate, _)| gate));
    for gate in others.chain(gates::NEEDS.iter().map(|(gate, _)| gate)) {
        assert!(gates::ALL_GATES.contains(gate), "{gate}");
    }
    assert!(gates::ALL_GATES.is_sorted());
}
