use std::path::Path;

use serde_json::json;

use super::*;
use crate::shared::daemon::node::testing::described;
use crate::shared::output::TextStyle;
use crate::tests::fixtures::{holds, says};

/// A VM on node 0 with half of its memory on node 1, and one without remote memory.
fn description() -> String {
    let node = |anon: u64, huge: u64| format!(r#"{{"anon":{anon},"file":4096,"shmem":0,"huge":{huge}}}"#);
    format!(
        r#"{{"version":"0.1.0","locality":{{"devices_unknown":null,"instances":{{
        "far":{{"nodes":[0],"cpus":{{"0":2}},"allowed":"","memory":{{"0":{},"1":{}}},"devices":[{{"name":"nvidia.com/gpu","node":1,"count":2}},
            {{"name":"kvm\u001b[2J","node":null,"count":1}}]}},
        "near":{{"nodes":[0,1],"allowed":"0-1","memory":{{"0":{},"1":{}}},"devices":[]}}}}}},
        "node":{{"ledger":{{"located":{{"far":[
            {{"part":"cpus","nodes":[[0,100]],"near_percent":100,"attached_percent":0,"since_us":1793000000000000}},
            {{"part":"memory","nodes":[[0,98],[1,2]],"near_percent":98,"attached_percent":0,"since_us":1793000000000000}}]}}}}}}}}"#,
        node(1 << 30, 0),
        node(0, 1 << 30),
        node(1 << 30, 0),
        node(1 << 20, 0),
    )
}

fn vm_locality(pod: &str) -> VmLocality {
    let roots = Roots::below(Path::new("/nowhere"));
    VmLocality::of(&described(&description()), pod, &roots, &[]).unwrap()
}

#[test]
fn show_prints_each_node_and_each_device() {
    assert_eq!(
        vm_locality("far").text(TextStyle::from(true)),
        "\nLocality: the VM's CPUs are on NUMA 0\n\
         PART             AMOUNT  NUMA NODES  PLACE   SINCE                DETAILS\n\
         CPUs                  2  0           near    2026-10-26 07:33:20\n\
         memory          1.0 GiB  0           near    2026-10-26 07:33:20\n\
         huge pages      1.0 GiB  1           remote  -\n\
         kvm?[2J               1  -           -       -\n\
         nvidia.com/gpu        2  1           remote  -\n"
    );
    let bare = vm_locality("near").text(TextStyle::from(false));
    let lines: Vec<&str> = bare.lines().collect();
    assert_eq!(lines.len(), 1, "{bare}");
    assert!(lines[0].starts_with("memory  1.0 GiB  0 99%, 1 1%  near"), "{bare}");
}

/// A GPU of the VM with its own memory node, an expander, a card at the same switch, and their interrupts.
#[test]
fn a_gpu_with_its_card_and_memory_without_cpus_have_their_rows() {
    let mut vm = vm_locality("far");
    let pci = r#"[{"address":"0000:3b:00.0","class":197120,"vendor":4318,"device":9008,"node":0,"path":["pci0000:3a","0000:3a:00.0","0000:3b:00.0"],
            "resource":"nvidia.com/gpu"},
        {"address":"0000:3b:00.1","class":131072,"vendor":5555,"device":4125,"node":1,"path":["pci0000:3a","0000:3a:00.0","0000:3b:00.1"],
            "part_of":"0000:3b:00.0"}]"#;
    vm.locality.pci = serde_json::from_str(pci).unwrap();
    vm.locality.interrupts =
        serde_json::from_str(r#"{"vectors":3,"targets":{"0":3},"fired":{"0":75,"1":25}}"#).unwrap();
    vm.locality.memory_only = serde_json::from_str(r#"{"1":{"kind":"CXL","nearest":[0]}}"#).unwrap();
    let text = vm.text(TextStyle::from(true));
    for line in [
        "huge pages        1.0 GiB  1             attached               -",
        "GPU 0000:3b:00.0        1  0             near                   -                    10de:2330, nvidia.com/gpu",
        "NIC 0000:3b:00.1        1  1             attached               -                    15b3:101d, VF of 0000:3b:00.0",
        "interrupts      100 times  0 75%, 1 25%  75% near, 25% attached  -                    3 vectors, now to 0",
        "GPU 0000:3b:00.0 and NIC 0000:3b:00.1: PIX, one PCIe switch",
    ] {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&text).contains(&words(line)), "{line}: {text}");
    }
    // The shares beside the record's time are the record's.
    vm.recorded = serde_json::from_str(
        r#"[{"part":"interrupts","nodes":[[0,97],[1,3]],"near_percent":97,"attached_percent":3,"since_us":1793000000000000}]"#,
    )
    .unwrap();
    let text = vm.text(TextStyle::from(true));
    let row = text.lines().find(|line| line.starts_with("interrupts"));
    let words: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(
        words.join(" "),
        "interrupts 100 times 0 97%, 1 3% 97% near, 3% attached 2026-10-26 07:33:20 3 vectors, now to 0"
    );
}

#[test]
fn json_has_the_report_and_the_record() {
    holds(
        &json!(vm_locality("far")),
        json!({
            "/nodes": [0], "/memory/1/huge": 1 << 30, "/recorded/0/part": "cpus",
            "/devices/0": {"name": "nvidia.com/gpu", "node": 1, "count": 2},
        }),
    );
}

#[test]
fn a_vm_that_is_not_in_the_report_has_no_locality() {
    let none = described("{}");
    assert_eq!(
        VmLocality::of(&none, "far", &Roots::below("/nowhere".as_ref()), &[]),
        None
    );
}

#[test]
fn devices_that_are_not_known_are_not_none() {
    let mut all = described(&description());
    all.locality.devices_unknown = Some("/x: checksum".to_owned());
    let vm_locality = VmLocality::of(&all, "near", &Roots::below(Path::new("/nowhere")), &[]).unwrap();
    let text = vm_locality.text(TextStyle::from(true));
    says(&text, &["\nkubelet's devices are not known: /x: checksum\n"]);
    assert_eq!(json!(vm_locality)["devices_unknown"], "/x: checksum");
}

#[test]
fn the_devices_of_a_process_are_those_it_has_open() {
    let null = fs::File::open("/dev/null").unwrap();
    let number = null.metadata().unwrap().rdev();
    let open = open_devices(Path::new("/proc"), std::process::id().cast_signed());
    assert!(
        open.contains(&(rustix::fs::major(number), rustix::fs::minor(number))),
        "{open:?}"
    );
    assert!(open_devices(Path::new("/nowhere"), 1).is_empty());
}
