//! What kubelet's record of devices shows, and what its damaged files leave.

use super::*;

const GPU: &str = "GPU-0000000N-aaaa-bbbb-cccc-1234567890ab";
const RECORD: &str = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

fn gpu(number: usize) -> String {
    GPU.replace('N', &number.to_string())
}

/// kubelet's record of a resource with these devices, of which a pod has some: each with the number of its NUMA node or -1.
fn record(root: &Path, resource: &str, ids: &[String], used: &[(i64, &str)]) {
    let entries: Vec<Value> = used
        .iter()
        .enumerate()
        .map(|(at, (node, id))| {
            let by_node = serde_json::Map::from_iter([(node.to_string(), json!([id]))]);
            json!({"PodUID": OTHER, "ContainerName": format!("c{at}"), "ResourceName": resource, "DeviceIDs": by_node, "AllocResp": ""})
        })
        .collect();
    let registered = serde_json::Map::from_iter([(resource.to_owned(), json!(ids))]);
    let text = |checksum: &str| {
        let data = json!({"PodDeviceEntries": entries, "RegisteredDevices": registered});
        json!({"Data": data, "Checksum": checksum.parse::<u32>().unwrap()}).to_string()
    };
    let wrong = stelia_kubelet::DeviceManagerState::parse(text("1").as_bytes()).unwrap_err();
    let wrong = wrong.to_string();
    let right = wrong.split("gives ").nth(1).unwrap();
    let right: String = right.chars().take_while(char::is_ascii_digit).collect();
    write(root, RECORD, &text(&right));
}

fn aligned(policy: &str) -> TempDir {
    node(&format!("{STATIC}topologyManagerPolicy: {policy}\n"))
}

fn gpus() -> Vec<String> {
    (0..4).map(gpu).collect()
}

/// NVIDIA's plugin: its ids are UUIDs, and a pod has two GPUs of NUMA node 0.
#[rstest::rstest]
#[case::none_in_use(&[])]
#[case::two_in_use(&[(0, 0), (0, 1)])]
fn where_the_free_gpus_are_unknown_so_is_a_strict_answer(#[case] used: &[(i64, usize)]) {
    let ids = gpus();
    let used: Vec<(i64, &str)> = used
        .iter()
        .map(|(node, number)| (*node, ids[*number].as_str()))
        .collect();
    let pod = ["-c", "cpus=2,memory=1Gi,nvidia.com/gpu=2"];
    for policy in ["restricted", "single-numa-node"] {
        let node = aligned(policy);
        record(node.path(), DEVICE, &ids, &used);
        let (printed, reason) = refused(node.path(), &pod);
        assert!(printed.contains("Admitted:  unknown\n"), "{printed}");
        assert!(
            reason.contains("NUMA nodes of the free devices of nvidia.com/gpu"),
            "{reason}"
        );
        // They may be given.
        let given = [&pod[..], &["--devices", "nvidia.com/gpu=0:0/2,1:2"]].concat();
        assert_eq!(answered(node.path(), &given)["containers"][0]["numa_nodes"], "1");
    }
    let node = aligned("best-effort");
    record(node.path(), DEVICE, &ids, &used);
    let text = steliactl(node.path(), &pod).unwrap();
    assert!(
        text.contains("preferred by every other resource; the preference of nvidia.com/gpu is unknown"),
        "{text}"
    );
    assert!(
        text.contains("not certain: ") && !text.contains("Why not better"),
        "{text}"
    );
    // More than there are, too few CPUs: no place of the GPUs would help.
    let node = aligned("restricted");
    record(node.path(), DEVICE, &ids, &used);
    for pod in [
        "cpus=2,memory=1Gi,nvidia.com/gpu=5",
        "cpus=16,memory=1Gi,nvidia.com/gpu=1",
    ] {
        let (printed, _) = refused(node.path(), &["-c", pod]);
        assert!(printed.contains("Admitted:  no: "), "{printed}");
    }
}

#[test]
fn nvidias_driver_says_where_its_gpus_are() {
    let node = aligned("restricted");
    record(node.path(), DEVICE, &gpus(), &[(0, &gpu(0))]);
    for number in 0..4 {
        let address = format!("0000:{number}7:00.0");
        let text = format!(
            "Model: \t\t NVIDIA H100\nGPU UUID: \t {}\nDevice Minor: \t {number}\n",
            gpu(number)
        );
        write(
            node.path(),
            &format!("proc/driver/nvidia/gpus/{address}/information"),
            &text,
        );
        let numa = format!("{}\n", number / 2);
        write(node.path(), &format!("sys/bus/pci/devices/{address}/numa_node"), &numa);
    }
    let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi,nvidia.com/gpu=2"]);
    assert_eq!(answer["containers"][0]["devices"][0]["numa_nodes"], "1", "{answer}");
    // GKE's plugin names them by the driver's numbers.
    let ids = ["nvidia0/gi0", "nvidia0/gi1/vgpu0", "nvidia2", "nvidia3/vgpu1"].map(str::to_owned);
    record(node.path(), DEVICE, &ids, &[(0, "nvidia0/gi0")]);
    let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi,nvidia.com/gpu=2"]);
    assert_eq!(answer["containers"][0]["devices"][0]["numa_nodes"], "1", "{answer}");
}

/// Of a GPU that is shared one share is in use.
#[rstest::rstest]
#[case(
    "GPU-00000004-aaaa-bbbb-cccc-1234567890ab::0",
    "GPU-00000004-aaaa-bbbb-cccc-1234567890ab::1"
)]
#[case("nvidia0/vgpu0", "nvidia0/vgpu1")]
#[case(
    "MIG-GPU-00000004-aaaa-bbbb-cccc-1234567890ab/1/0",
    "MIG-GPU-00000004-aaaa-bbbb-cccc-1234567890ab/2/0"
)]
fn shares_of_a_gpu_are_where_the_gpu_is(#[case] used: &str, #[case] free: &str) {
    let node = aligned("restricted");
    record(node.path(), DEVICE, &[used.to_owned(), free.to_owned()], &[(1, used)]);
    let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi,nvidia.com/gpu=1"]);
    assert_eq!(answer["containers"][0]["numa_nodes"], "1", "{answer}");
}

/// `excludeTopology` of SR-IOV's plugin: the kernel knows the NUMA node, and the plugin does not report it.
#[test]
fn a_plugin_whose_devices_are_recorded_without_numa_nodes_reports_none() {
    let node = aligned("single-numa-node");
    let ids: Vec<String> = (0..4).map(|number| format!("0000:18:01.{number}")).collect();
    for id in &ids {
        write(node.path(), &format!("sys/bus/pci/devices/{id}/numa_node"), "0\n");
    }
    record(node.path(), "example.com/any", &ids, &[(-1, &ids[0])]);
    // Those of NUMA node 0 are not enough.
    let answer = answered(node.path(), &["-c", "cpus=6,memory=1Gi,example.com/any=1"]);
    assert_eq!(
        (&answer["admitted"], &answer["containers"][0]["numa_nodes"]),
        (&json!(true), &json!("1")),
        "{answer}"
    );
    assert!(!answer["assumed"].to_string().contains("example.com/any"), "{answer}");
}

/// No pod has one, so nothing shows whether the plugin reports what the kernel knows.
#[test]
fn what_a_plugin_reports_is_an_assumption_while_no_device_is_in_use() {
    let node = aligned("single-numa-node");
    write(node.path(), "sys/bus/pci/devices/0000:18:01.0/numa_node", "1\n");
    record(node.path(), "example.com/any", &["0000:18:01.0".to_owned()], &[]);
    let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi,example.com/any=1"]);
    assert_eq!(answer["containers"][0]["numa_nodes"], "1", "{answer}");
    assert!(
        answer["assumed"]
            .to_string()
            .contains("no pod has a device of example.com/any"),
        "{answer}"
    );
    // NUMA node 0 has too few CPUs: a plugin that reports it keeps the pod from being admitted.
    write(node.path(), "sys/bus/pci/devices/0000:18:01.0/numa_node", "0\n");
    let pod = ["-c", "cpus=8,memory=1Gi,example.com/any=1"];
    let (printed, reason) = refused(node.path(), &pod);
    assert!(printed.contains("Admitted:  unknown\n"), "{printed}");
    assert!(
        reason.contains("whether the plugin of example.com/any reports"),
        "{reason}"
    );
    let given = [&pod[..], &["--devices", "example.com/any=0:1"]].concat();
    assert!(
        refused(node.path(), &given)
            .0
            .contains("Admitted:  no: TopologyAffinityError")
    );
}

/// What a newer kubelet writes keeps it from nothing; only the sum of requests is not known.
#[test]
fn a_file_of_pods_of_another_schema_is_left_out() {
    let node = aligned("restricted");
    write(node.path(), "var/lib/kubelet/allocated_pods_state", "\n\0\u{12}\u{5}");
    let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi"]);
    assert_eq!(answer["admitted"], true, "{answer}");
    let assumed = answer["assumed"].to_string();
    assert!(
        assumed.contains("it was not checked whether the node has room"),
        "{assumed}"
    );
}

#[test]
fn kubelet_goes_on_without_its_record_of_devices() {
    for text in [
        "",
        "{\"Data\":{\"PodDeviceEntries\":[{\"PodUID\":\"e49ac",
        "{\"Data\":{\"PodDeviceEntries\":null,\"RegisteredDevices\":{}},\"Checksum\":7}",
    ] {
        let node = aligned("restricted");
        write(node.path(), RECORD, text);
        let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi"]);
        assert_eq!(answer["admitted"], true, "{answer}");
        let fault = answer["faults"].to_string();
        assert!(fault.contains("has forgotten which devices are in use"), "{fault}");
        let (printed, _) = refused(node.path(), &["-c", "cpus=2,memory=1Gi,nvidia.com/gpu=1"]);
        assert!(printed.contains("Admitted:  unknown\n"), "{printed}");
        let given = [
            "-c",
            "cpus=2,memory=1Gi,nvidia.com/gpu=1",
            "--devices",
            "nvidia.com/gpu=0:1",
        ];
        assert_eq!(answered(node.path(), &given)["admitted"], true);
    }
}

#[rstest::rstest]
#[case("cpu_manager_state", "")]
#[case("cpu_manager_state", "{\"policyName\":\"static\",\"defaultCp")]
#[case("memory_manager_state", "")]
#[case("allocated_pods_state", "{\"data\":\"{\\\"entries\\\":{\\\"e49ac")]
#[case("actuated_pods_state", "")]
#[case("allocated_pods_state", "{\"data\":\"{}\",\"checksum\":1}")]
#[case("actuated_pods_state", "{}")]
#[case("dra_manager_state", "")]
#[case("dra_manager_state", "{\"Data\":\"{\\\"kind\\\":")]
fn kubelet_does_not_start_on_other_damaged_files(#[case] file: &str, #[case] text: &str) {
    let node = aligned("restricted");
    write(node.path(), &format!("var/lib/kubelet/{file}"), text);
    let (_, reason) = refused(node.path(), &["-c", "cpus=2,memory=1Gi"]);
    assert!(
        reason.starts_with("kubelet would not start: ") && reason.contains(file),
        "{reason}"
    );
    if !file.ends_with("manager_state") || file.starts_with("dra") {
        let before = ["-c", "cpus=2,memory=1Gi", "--kubelet-version", "1.32"];
        assert_eq!(answered(node.path(), &before)["admitted"], true);
    }
}

/// Both NUMA nodes serve a pod together, and each has more memory free than the pod wants.
#[test]
fn a_group_of_numa_nodes_is_named_as_the_reason() {
    let config = "memoryManagerPolicy: Static\nkubeReserved: {memory: 924Mi}\n\
                  reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\ntopologyManagerPolicy: restricted\n";
    let node = node(&format!("{STATIC}{config}"));
    let table = |id: u64, reserved: u64| {
        let (total, system) = (16u64 << 30, if id == 0 { 1u64 << 30 } else { 0 });
        let allocatable = total - system;
        let free = allocatable - reserved;
        format!(
            r#""{id}":{{"numberOfAssignments":1,"memoryMap":{{"memory":{{"total":{total},"systemReserved":{system},"allocatable":{allocatable},"reserved":{reserved},"free":{free}}}}},"cells":[0,1]}}"#
        )
    };
    let size = 10u64 << 30;
    let text = |checksum: u64| {
        format!(
            r#"{{"policyName":"Static","machineState":{{{},{}}},"entries":{{"{OTHER}":{{"vm":[{{"numaAffinity":[0,1],"type":"memory","size":{size}}}]}}}},"checksum":{checksum}}}"#,
            table(0, size),
            table(1, 0)
        )
    };
    write_memory(node.path(), text);
    let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi"]);
    let because = answer["rejection"]["because"].as_str().unwrap_or_default();
    assert!(
        because.contains("NUMA nodes {0-1} already serve a pod together") && because.contains("16.0 GiB on 1"),
        "{answer}"
    );
    // Twenty GiB are on both nodes in any case.
    let answer = answered(node.path(), &["-c", "cpus=2,memory=20Gi"]);
    assert!(!answer.to_string().contains("already serve a pod"), "{answer}");
}
