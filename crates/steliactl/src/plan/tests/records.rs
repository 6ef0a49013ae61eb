//! What kubelet's record of devices shows, and what its damaged files leave.

use super::*;

const ONE_GPU: &str = "-c cpus=2,memory=1Gi,nvidia.com/gpu=1";
const TWO_GPUS: &str = "-c cpus=2,memory=1Gi,nvidia.com/gpu=2";

fn gpu(number: usize) -> String {
    format!("GPU-0000000{number}-aaaa-bbbb-cccc-1234567890ab")
}

fn gpus() -> Vec<String> {
    (0..4).map(gpu).collect()
}

/// NVIDIA's plugin: its ids are UUIDs. No GPU is in use, or a pod has two of NUMA node 0.
#[test]
fn where_the_free_gpus_are_unknown_so_is_a_strict_answer() {
    let ids = gpus();
    for used in [&[][..], &[(0, ids[0].as_str()), (0, ids[1].as_str())]] {
        let with = |policy: &str| {
            let node = aligned(policy);
            record(node.path(), DEVICE, &ids, used);
            node
        };
        for policy in ["restricted", "single-numa-node"] {
            let node = with(policy);
            let (printed, reason) = refused(node.path(), TWO_GPUS);
            says(&printed, &["unknown\n"]);
            says(&reason, &["NUMA nodes of the free devices of nvidia.com/gpu"]);
            // They may be given.
            let answer = answered(node.path(), &format!("{TWO_GPUS} --devices nvidia.com/gpu=0:0/2,1:2"));
            assert_eq!(answer["containers"][0]["numa_nodes"], "1");
        }
        let text = steliactl(with("best-effort").path(), TWO_GPUS).unwrap();
        says(&text, &["perhaps not together: "]);
        never_says(&text, &["Why not better"]);
        // More than there are, too few CPUs: no place of the GPUs would help.
        let node = with("restricted");
        for pod in [
            "-c cpus=2,memory=1Gi,nvidia.com/gpu=5",
            "-c cpus=16,memory=1Gi,nvidia.com/gpu=1",
        ] {
            says(&refused(node.path(), pod).0, &["no: "]);
        }
    }
}

#[test]
fn nvidias_driver_says_where_its_gpus_are() {
    let node = aligned("restricted");
    for number in 0..4 {
        let address = format!("0000:{number}7:00.0");
        let text = format!(
            "Model: \t\t NVIDIA H100\nGPU UUID: \t {}\nDevice Minor: \t {number}\n",
            gpu(number)
        );
        write(
            node.path(),
            &format!("proc/driver/nvidia/gpus/{address}/information"),
            text,
        );
        let numa = format!("{}\n", number / 2);
        write(node.path(), &format!("sys/bus/pci/devices/{address}/numa_node"), numa);
    }
    // GKE's plugin names them by the driver's numbers.
    let of_gke = ["nvidia0/gi0", "nvidia0/gi1/vgpu0", "nvidia2", "nvidia3/vgpu1"].map(str::to_owned);
    for ids in [gpus(), of_gke.into()] {
        record(node.path(), DEVICE, &ids, &[(0, &ids[0])]);
        let answer = answered(node.path(), TWO_GPUS);
        assert_eq!(
            answer["containers"][0]["locality"]["devices"][0]["nodes"], "1",
            "{answer}"
        );
    }
}

/// Of a GPU that is shared one share is in use.
#[test]
fn shares_of_a_gpu_are_where_the_gpu_is() {
    let (gpu, node) = (gpu(4), aligned("restricted"));
    for [used, free] in [
        [format!("{gpu}::0"), format!("{gpu}::1")],
        ["nvidia0/vgpu0", "nvidia0/vgpu1"].map(str::to_owned),
        [format!("MIG-{gpu}/1/0"), format!("MIG-{gpu}/2/0")],
    ] {
        record(node.path(), DEVICE, &[used.clone(), free], &[(1, &used)]);
        let answer = answered(node.path(), ONE_GPU);
        assert_eq!(answer["containers"][0]["numa_nodes"], "1", "{used}: {answer}");
    }
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
    let answer = answered(node.path(), "-c cpus=6,memory=1Gi,example.com/any=1");
    holds(&answer, json!({"/admitted": true, "/containers/0/numa_nodes": "1"}));
    never_says(&answer["assumed"].to_string(), &["example.com/any"]);
}

/// No pod has one, so nothing shows whether the plugin reports what the kernel knows.
#[test]
fn what_a_plugin_reports_is_an_assumption_while_no_device_is_in_use() {
    let node = aligned("single-numa-node");
    let on = |numa: &str| write(node.path(), "sys/bus/pci/devices/0000:18:01.0/numa_node", numa);
    on("1\n");
    record(node.path(), "example.com/any", &["0000:18:01.0".to_owned()], &[]);
    let answer = answered(node.path(), &format!("{TWO},example.com/any=1"));
    holds(
        &answer["containers"][0],
        json!({"/numa_nodes": "1", "/locality/verdict": "one-node"}),
    );
    says(
        &answer["assumed"].to_string(),
        &["example.com/any: no pod has a device"],
    );
    // NUMA node 0 has too few CPUs: a plugin that reports it keeps the pod from being admitted.
    on("0\n");
    let pod = "-c cpus=8,memory=1Gi,example.com/any=1";
    let (printed, reason) = refused(node.path(), pod);
    says(&printed, &["unknown\n"]);
    says(&reason, &["whether the plugin of example.com/any reports"]);
    let (printed, _) = refused(node.path(), &format!("{pod} --devices example.com/any=0:1"));
    says(&printed, &["no: TopologyAffinityError"]);
}

/// What a newer kubelet writes keeps it from nothing; only the sum of requests is not known.
#[test]
fn a_file_of_pods_of_another_schema_is_left_out() {
    let node = aligned("restricted");
    write(node.path(), "var/lib/kubelet/allocated_pods_state", "\n\0\u{12}\u{5}");
    let answer = answered(node.path(), TWO);
    assert_eq!(answer["admitted"], true, "{answer}");
    let expected = "it was not checked whether the node has room";
    says(&answer["assumed"].to_string(), &[expected]);
}

#[test]
fn kubelet_goes_on_without_its_record_of_devices() {
    let node = aligned("restricted");
    for text in [
        "",
        "{\"Data\":{\"PodDeviceEntries\":[{\"PodUID\":\"e49ac",
        "{\"Data\":{\"PodDeviceEntries\":null,\"RegisteredDevices\":{}},\"Checksum\":7}",
    ] {
        write(node.path(), RECORD, text);
        let answer = answered(node.path(), TWO);
        assert_eq!(answer["admitted"], true, "{answer}");
        let expected = "has forgotten which devices are in use";
        says(&answer["faults"].to_string(), &[expected]);
        says(&refused(node.path(), ONE_GPU).0, &["unknown\n"]);
        let answer = answered(node.path(), &format!("{ONE_GPU} --devices nvidia.com/gpu=0:1"));
        assert_eq!(answer["admitted"], true);
    }
}

#[test]
fn kubelet_does_not_start_on_other_damaged_files() {
    for (file, text) in [
        ("cpu_manager_state", ""),
        ("cpu_manager_state", "{\"policyName\":\"static\",\"defaultCp"),
        ("memory_manager_state", ""),
        ("allocated_pods_state", "{\"data\":\"{\\\"entries\\\":{\\\"e49ac"),
        ("actuated_pods_state", ""),
        ("allocated_pods_state", "{\"data\":\"{}\",\"checksum\":1}"),
        ("actuated_pods_state", "{}"),
        ("dra_manager_state", ""),
        ("dra_manager_state", "{\"Data\":\"{\\\"kind\\\":"),
    ] {
        let node = aligned("restricted");
        write(node.path(), &format!("var/lib/kubelet/{file}"), text);
        let answer = answered(node.path(), TWO);
        holds(
            &answer,
            json!({"/admitted": null, "/rejection": null, "/unknown/reason": "unknown"}),
        );
        says(
            &answer["unknown"]["message"].to_string(),
            &["would not start again: ", file],
        );
        says(&answer["unknown"]["fix"].to_string(), &["drain the node"]);
        if !file.ends_with("manager_state") || file.starts_with("dra") {
            let before = format!("{TWO} --kubelet-version 1.32");
            assert_eq!(answered(node.path(), &before)["admitted"], true);
        }
    }
}

/// Both NUMA nodes serve a pod together, and each has more memory free than the pod wants.
#[test]
fn a_group_of_numa_nodes_is_named_as_the_reason() {
    let config = "memoryManagerPolicy: Static\nkubeReserved: {memory: 924Mi}\n\
                  reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\ntopologyManagerPolicy: restricted\n";
    let node = node(&format!("{STATIC}{config}"));
    let size = 10 << 30;
    let entries = json!({OTHER: {"vm": [{"numaAffinity": [0, 1], "type": "memory", "size": size}]}});
    write_memory(node.path(), &[[16 << 30, 1 << 30, size], [16 << 30, 0, 0]], entries);
    let answer = answered(node.path(), TWO);
    let expected = [
        "NUMA nodes {0-1} already serve a pod together",
        "16.0 GiB memory on NUMA 1",
    ];
    says(&answer["rejection"]["because"].to_string(), &expected);
    // Twenty GiB are on both nodes in any case.
    let answer = answered(node.path(), "-c cpus=2,memory=20Gi");
    never_says(&answer.to_string(), &["already serve a pod"]);
}
