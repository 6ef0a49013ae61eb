use rstest::rstest;
use stelia_kubelet::QosClass;

use super::super::{Described, described};
use super::*;

const MIB: u64 = 1 << 20;

fn vm(domain: &str, more: &str) -> Result<Described, ManifestError> {
    let text = format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: a}}, spec: {{domain: {domain}, {more}}}}}"
    );
    described(&text, None)
}

/// The overhead in MiB of a VM that requests 1 GiB, with these fields of `domain`, `resources.limits` and `spec`.
fn overhead(domain: &str, limits: &str, spec: &str) -> u64 {
    let domain = format!("{{resources: {{requests: {{memory: 1Gi, {limits}, {domain}}}");
    let found = vm(&domain, spec).unwrap();
    let requested = found.pod.containers[0].resources.requests.memory.unwrap();
    (requested - (1 << 30)) / MIB
}

/// The values are those of KubeVirt's `hypervisorbackend_test.go`: 7 + 223 + 32 (video) + 8 (one vCPU), and what the field adds.
#[rstest]
#[case::nothing("", "}}", "", 0)]
#[case::vcpus("cpu: {cores: 2, threads: 2, sockets: 2}", "}}", "", 7 * 8)]
#[case::limit_of_cpus("", "cpu: 3}, limits: {cpu: 5}}", "", 4 * 8)]
#[case::request_of_cpus("", "cpu: 3}}", "", 2 * 8)]
#[case::arm64("", "}}", "architecture: arm64", 128)]
#[case::host_device("devices: {hostDevices: [{name: test}]}", "}}", "", 1024)]
#[case::gpu("devices: {gpus: [{name: test}]}", "}}", "", 1024)]
#[case::sriov("devices: {interfaces: [{name: test, sriov: {}}]}", "}}", "", 1024)]
#[case::bridge("devices: {interfaces: [{name: test, bridge: {}}]}", "}}", "", 0)]
#[case::metrics("", "}}", "volumes: [{name: a, downwardMetrics: {}}]", 1)]
#[case::liveness("", "}}", "livenessProbe: {exec: {command: [a]}}", 110)]
#[case::readiness("", "}}", "readinessProbe: {exec: {command: [a]}}", 110)]
#[case::probes("", "}}", "livenessProbe: {exec: {}}, readinessProbe: {exec: {}}", 120)]
#[case::probe_by_http("", "}}", "livenessProbe: {httpGet: {port: 80}}", 0)]
#[case::sev("launchSecurity: {sev: {}}", "}}", "", 256)]
#[case::snp("launchSecurity: {snp: {}}", "}}", "", 256)]
#[case::tpm("devices: {tpm: {}}", "}}", "", 53)]
#[case::tpm_that_is_off("devices: {tpm: {enabled: false}}", "}}", "", 0)]
#[case::dedicated("cpu: {cores: 1, dedicatedCpuPlacement: true}", "}}", "", 100)]
#[case::guaranteed("cpu: {cores: 1}", "cpu: 4}, limits: {cpu: 4, memory: 1Gi}}", "", 100)]
#[case::reserved("memory: {reservedOverhead: {addedOverhead: 3Gi}}", "}}", "", 3 << 10)]
#[case::no_screen("devices: {autoattachGraphicsDevice: false}, cpu: {cores: 5}", "}}", "", 0)]
fn the_overhead_is_kubevirts(#[case] domain: &str, #[case] limits: &str, #[case] spec: &str, #[case] more: u64) {
    assert_eq!(overhead(domain, limits, spec), 7 + 223 + 32 + 8 + more);
}

#[test]
fn page_tables_are_counted_of_the_memory_request_alone() {
    let requested = |domain: &str| vm(domain, "").unwrap().pod.containers[0].resources.requests.memory;
    // 228 MiB for the processes, 32 for a screen, 8 for a vCPU.
    assert_eq!(requested("{memory: {guest: 4Gi}}"), Some((4096 + 268) * MIB));
    // KubeVirt rounds the request up to 1000 bytes.
    let sum = (4096 + 268) * MIB + 4_294_968_000 / 512;
    assert_eq!(requested("{resources: {requests: {memory: 4Gi}}}"), Some(sum));
    let large = 64_u64 << 30;
    let sum = large + 268 * MIB + 68_719_477_000 / 512;
    assert_eq!(requested("{resources: {requests: {memory: 64Gi}}}"), Some(sum));
}

#[test]
fn the_pod_of_an_overcommitted_vm_is_burstable_in_spite_of_dedicated_cpus() {
    let domain = |value: &str| {
        format!(
            "{{cpu: {{cores: 2, dedicatedCpuPlacement: true}}, memory: {{guest: 1Gi}}, resources: {{overcommitGuestOverhead: {value}}}}}"
        )
    };
    let found = vm(&domain("true"), "").unwrap();
    assert_eq!(found.pod.qos(), QosClass::Burstable);
    let resources = &found.pod.containers[0].resources;
    assert_eq!(resources.requests.memory, Some(1 << 30));
    assert_eq!(resources.limits.memory, Some((1024 + 228 + 32 + 16 + 100) * MIB));
    assert!(found.assumed[1].contains("the pod is Burstable"), "{:?}", found.assumed);
    let found = vm(&domain("false"), "").unwrap();
    assert_eq!((found.pod.qos(), found.assumed.len()), (QosClass::Guaranteed, 1));
}

/// By `renderresources_test.go`: vCPUs, threads of a pool that is not the policy, whether it is, and the CPUs together.
#[rstest]
#[case(5, 2, false, false, 8)]
#[case(5, 2, false, true, 8)]
#[case(6, 2, false, true, 10)]
#[case(4, 1, false, true, 6)]
#[case(4, 1, true, true, 7)]
fn the_emulators_thread_makes_cpus_even(
    #[case] vcpus: u64,
    #[case] threads: u64,
    #[case] is_pool: bool,
    #[case] even: bool,
    #[case] cpus: u64,
) {
    let policy = if is_pool {
        "ioThreadsPolicy: supplementalPool, "
    } else {
        ""
    };
    let annotations = if even {
        "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: ''"
    } else {
        ""
    };
    let text = format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: a, annotations: {{{annotations}}}}}, spec: {{domain: \
         {{{policy}ioThreads: {{supplementalPoolThreadCount: {threads}}}, memory: {{guest: 1Gi}}, cpu: {{cores: {vcpus}, \
         dedicatedCpuPlacement: true, isolateEmulatorThread: true}}}}}}}}"
    );
    let pod = described(&text, None).unwrap().pod;
    assert_eq!(pod.containers[0].resources.limits.milli_cpus, Some(cpus * 1000));
}

fn requirements(domain: &str, spec: &str) -> (String, String) {
    let found = vm(&format!("{{memory: {{guest: 1Gi}}, {domain}}}"), spec).unwrap();
    let selector = found.document["spec"]["nodeSelector"].to_string();
    assert!(!selector.contains("kubevirt.io"), "{selector}");
    (
        found.requirements.labels_in_words(),
        found
            .requirements
            .devices_in_words()
            .replace("devices.kubevirt.io/", ""),
    )
}

#[rstest]
#[case::nothing("", "", "", "kvm, tun, vhost-net")]
#[case::dedicated(
    "cpu: {cores: 2, dedicatedCpuPlacement: true}",
    "",
    "kubevirt.io/cpumanager=true, ",
    "kvm, tun, vhost-net"
)]
#[case::no_network("devices: {autoattachPodInterface: false}", "", "", "kvm")]
#[case::another_model("devices: {interfaces: [{name: a, model: e1000}]}", "", "", "kvm, tun")]
#[case::virtio(
    "devices: {interfaces: [{name: a, model: e1000}, {name: b}]}",
    "",
    "",
    "kvm, tun, vhost-net"
)]
#[case::network_without_interface("", "networks: [{name: a, pod: {}}]", "", "kvm, tun")]
#[case::vsock("devices: {autoattachVSOCK: true}", "", "", "kvm, tun, vhost-net, vhost-vsock")]
fn labels_and_devices_of_nodes_are_required(
    #[case] domain: &str,
    #[case] spec: &str,
    #[case] labels: &str,
    #[case] devices: &str,
) {
    let expected = (format!("{labels}kubevirt.io/schedulable=true"), devices.to_owned());
    assert_eq!(requirements(domain, spec), expected);
}

#[test]
fn labels_of_the_processor_and_the_machine_are_required() {
    let cpu = "cpu: {model: Skylake-Server, features: [{name: vmx}, {name: pdpe1gb, policy: require}, {name: avx, policy: disable}]}";
    let (labels, _) = requirements(&format!("{cpu}, machine: {{type: q35}}"), "");
    assert_eq!(
        labels,
        "cpu-feature.node.kubevirt.io/pdpe1gb=true, cpu-feature.node.kubevirt.io/vmx=true, \
         cpu-model.node.kubevirt.io/Skylake-Server=true, kubevirt.io/schedulable=true, machine-type.node.kubevirt.io/q35=true"
    );
    let (labels, devices) = requirements(
        "cpu: {model: host-model}, launchSecurity: {sev: {policy: {encryptedState: true}}}",
        "",
    );
    assert_eq!(
        labels,
        "kubevirt.io/schedulable=true, kubevirt.io/sev=true, kubevirt.io/sev-es=true"
    );
    assert_eq!(devices, "kvm, sev, tun, vhost-net");
    let (labels, _) = requirements("launchSecurity: {snp: {}}", "");
    assert_eq!(
        labels,
        "kubevirt.io/schedulable=true, kubevirt.io/sev=true, kubevirt.io/sev-snp=true"
    );
    let (labels, _) = requirements("launchSecurity: {tdx: {}}", "");
    assert_eq!(labels, "kubevirt.io/schedulable=true, kubevirt.io/tdx=true");
}

#[test]
fn the_architecture_is_a_label_of_every_node_and_the_vms_selector_goes_before() {
    let domain = "{memory: {guest: 1Gi}}";
    let found = vm(domain, "architecture: ARM64").unwrap();
    assert_eq!(found.document["spec"]["nodeSelector"]["kubernetes.io/arch"], "arm64");
    let found = vm(
        domain,
        "architecture: arm64, nodeSelector: {kubernetes.io/arch: b, kubevirt.io/schedulable: c}",
    )
    .unwrap();
    assert_eq!(found.document["spec"]["nodeSelector"]["kubernetes.io/arch"], "b");
    assert_eq!(found.requirements.labels_in_words(), "");
}

const DEDICATED: &str = "dedicatedCpuPlacement: true";

#[rstest]
#[case(
    "cpu: {isolateEmulatorThread: true}",
    "",
    "cpu.isolateEmulatorThread: it needs dedicatedCpuPlacement"
)]
#[case(
    "cpu: {threads: 4, DEDICATED}",
    "",
    "cpu.threads: dedicatedCpuPlacement allows at most two threads for a core"
)]
#[case(
    "cpu: {DEDICATED}",
    "requests: {cpu: 1500m}",
    "resources.requests.cpu: 1500m is not a whole number of CPUs, which dedicatedCpuPlacement needs"
)]
#[case(
    "cpu: {DEDICATED}",
    "limits: {cpu: 1500m}",
    "resources.limits.cpu: 1500m is not a whole number of CPUs, which dedicatedCpuPlacement needs"
)]
#[case(
    "cpu: {cores: 4, DEDICATED}",
    "requests: {cpu: 2}",
    "resources.requests.cpu: 2 CPUs differ from the VM's 4 vCPUs (sockets × cores × threads), which dedicatedCpuPlacement does not allow"
)]
#[case(
    "cpu: {cores: 2, threads: 2, DEDICATED}",
    "limits: {cpu: 8}",
    "resources.limits.cpu: 8 CPUs differ from the VM's 4 vCPUs (sockets × cores × threads), which dedicatedCpuPlacement does not allow"
)]
#[case(
    "cpu: {cores: 4, DEDICATED}",
    "requests: {cpu: 2}, limits: {cpu: 4}",
    "resources.requests.cpu: 2 is requested and the limit is 4: dedicatedCpuPlacement needs equal amounts"
)]
#[case(
    "cpu: {cores: 4, DEDICATED}",
    "requests: {memory: 1Gi}, limits: {memory: 2Gi}",
    "resources.requests.memory: 1073741824 is requested and the limit is 2147483648: dedicatedCpuPlacement needs equal amounts"
)]
#[case(
    "cpu: {cores: 4}",
    "requests: {memory: 2Gi}, limits: {memory: 1Gi}",
    "resources.requests.memory: 2147483648 is more than the limit, 1073741824"
)]
#[case(
    "cpu: {cores: 4}",
    "requests: {cpu: 3}, limits: {cpu: 2}",
    "resources.requests.cpu: 3 is more than the limit, 2"
)]
#[case(
    "cpu: {numa: {guestMappingPassthrough: {}}}",
    "",
    "cpu.numa.guestMappingPassthrough: it needs dedicatedCpuPlacement"
)]
#[case(
    "cpu: {DEDICATED, numa: {guestMappingPassthrough: {}}}",
    "",
    "cpu.numa.guestMappingPassthrough: it needs memory.hugepages"
)]
#[case("cpu: {realtime: {}}", "", "cpu.realtime: it needs dedicatedCpuPlacement")]
#[case(
    "cpu: {DEDICATED, realtime: {}}",
    "",
    "cpu.realtime: it needs numa.guestMappingPassthrough"
)]
#[case(
    "cpu: {features: [{name: a, policy: maybe}]}",
    "",
    r#"cpu.features[0].policy: "maybe" is not a policy of a CPU feature"#
)]
fn what_kubevirts_webhook_refuses_is_refused(#[case] cpu: &str, #[case] resources: &str, #[case] error: &str) {
    let cpu = cpu.replace("DEDICATED", DEDICATED);
    let domain = format!("{{memory: {{guest: 1Gi}}, {cpu}, resources: {{{resources}}}}}");
    assert_eq!(vm(&domain, "").unwrap_err().to_string(), format!("spec.domain.{error}"));
}

#[test]
fn what_kubevirts_webhook_admits_is_admitted() {
    for (cpu, resources) in [
        (
            "{cores: 4, DEDICATED, isolateEmulatorThread: true}",
            "requests: {cpu: 4}, limits: {cpu: 4}",
        ),
        ("{threads: 2, DEDICATED}", "limits: {cpu: 2, memory: 1Gi}"),
        ("{DEDICATED}", "requests: {cpu: 3}"),
        ("{cores: 4}", "requests: {cpu: 1500m}, limits: {cpu: 8}"),
        ("{threads: 4}", "requests: {memory: 1Gi}, limits: {memory: 2Gi}"),
    ] {
        let cpu = cpu.replace("DEDICATED", DEDICATED);
        let domain = format!("{{memory: {{guest: 1Gi}}, cpu: {cpu}, resources: {{{resources}}}}}");
        assert!(vm(&domain, "").is_ok(), "{domain}: {:?}", vm(&domain, ""));
    }
    let pages = |guest: &str| {
        let numa = "numa: {guestMappingPassthrough: {}}, realtime: {}";
        format!("{{memory: {{guest: {guest}, hugepages: {{pageSize: 1Gi}}}}, cpu: {{cores: 2, {DEDICATED}, {numa}}}}}")
    };
    assert!(vm(&pages("2Gi"), "").is_ok());
    for (guest, bytes) in [("1536Mi", 1536 * MIB), ("512Mi", 512 * MIB)] {
        assert_eq!(
            vm(&pages(guest), "").unwrap_err().to_string(),
            format!("spec.domain.memory.hugepages.pageSize: the VM's memory, {bytes} bytes, is not a multiple of it")
        );
    }
    let error = vm(
        &format!("{{memory: {{guest: 1Gi}}, cpu: {{threads: 2, {DEDICATED}}}}}"),
        "architecture: arm64",
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "spec.domain.cpu.threads: a core of arm64 has one thread"
    );
}
