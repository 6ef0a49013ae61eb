use std::path::Path;

use super::*;
use crate::shared::daemon::node;
use crate::shared::kernel::Roots;
use crate::shared::output::TextStyle;

fn parse(description: &str) -> Result<Localities, Failure> {
    Ok(node::parse(description)?.locality)
}

/// A VM on node 0 with half of its memory on node 1, and one without remote memory.
fn description() -> String {
    let node = |anon: u64, huge: u64| format!(r#"{{"anon":{anon},"file":4096,"shmem":0,"huge":{huge}}}"#);
    format!(
        r#"{{"version":"0.1.0","locality":{{"devices_unknown":null,"instances":{{
        "far":{{"nodes":[0],"allowed":"","memory":{{"0":{},"1":{}}},"devices":[{{"name":"nvidia.com/gpu","node":1,"count":2}},
            {{"name":"kvm\u001b[2J","node":null,"count":1}}]}},
        "near":{{"nodes":[0,1],"allowed":"0-1","memory":{{"0":{},"1":{}}},"devices":[]}}}}}}}}"#,
        node(1 << 30, 0),
        node(0, 1 << 30),
        node(1 << 30, 0),
        node(1 << 20, 0),
    )
}

fn vm_locality(pod: &str) -> VmLocality {
    let roots = Roots::below(Path::new("/nowhere"));
    VmLocality::of(parse(&description()).unwrap(), pod, &roots, &[]).unwrap()
}

#[test]
fn show_prints_each_node_and_each_device() {
    assert_eq!(
        vm_locality("far").text(TextStyle::from(true)),
        "\nMemory: 50 % (1.0 GiB of 2.0 GiB) is not on the NUMA nodes of its CPUs, 0\n\
         NODE  OWN  ANON     SHMEM  HUGE PAGES  FILE\n\
         0     yes  1.0 GiB  0 B    0 B         4.0 KiB\n\
         1     no   0 B      0 B    1.0 GiB     4.0 KiB\n\
         \nDevices\n\
         NODE  OWN  COUNT  DEVICE\n\
         1     no   2      nvidia.com/gpu\n\
         -     -    1      kvm?[2J\n"
    );
    let bare = vm_locality("near").text(TextStyle::from(false));
    assert_eq!(bare.lines().count(), 2, "{bare}");
    assert!(bare.starts_with("0  yes  1.0 GiB"), "{bare}");
}

#[test]
fn json_holds_the_share_and_what_it_is_of() {
    let json = vm_locality("far").json();
    assert_eq!(
        (&json["away_ratio"], &json["too_much_away"]),
        (&json!(0.5), &json!(true))
    );
    assert_eq!(
        (&json["away_bytes"], &json["counted_bytes"]),
        (&json!(1u64 << 30), &json!(2u64 << 30))
    );
    assert_eq!(json["nodes"][1]["huge_pages_bytes"], json!(1 << 30));
    assert_eq!(
        json["devices"][0],
        json!({"name": "nvidia.com/gpu", "node": 1, "own": false, "count": 2})
    );
    assert_eq!(
        (&json["mapped"], &vm_locality("near").json()["cpu_nodes"]),
        (&Value::Null, &json!("0-1"))
    );
}

#[test]
fn a_vm_that_is_not_in_the_report_has_no_locality() {
    let none = parse(r#"{"version":"0.1.0","node":{}}"#).unwrap();
    assert_eq!(VmLocality::of(none, "far", &Roots::default(), &[]), None);
    assert!(parse("no JSON").is_err());
}

#[test]
fn devices_that_are_not_known_are_not_none() {
    let mut all = parse(&description()).unwrap();
    all.devices_unknown = Some("/x: checksum".to_owned());
    let vm_locality = VmLocality::of(all, "near", &Roots::below(Path::new("/nowhere")), &[]).unwrap();
    assert!(
        vm_locality
            .text(TextStyle::from(true))
            .ends_with("\nDevices\nkubelet's are not known: /x: checksum\n")
    );
    assert_eq!(vm_locality.json()["devices_unknown"], "/x: checksum");
}

#[test]
fn what_is_mapped_is_told_by_process_when_it_is_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let roots = Roots::below(root.path());
    let process = |pid: u32| Process {
        pid,
        container_pid: None,
        name: "qemu".to_owned(),
        threads: Vec::new(),
    };
    std::fs::create_dir_all(root.path().join("proc/9")).unwrap();
    std::fs::write(
        root.path().join("proc/9/numa_maps"),
        "7f default N1=512 kernelpagesize_kB=4\n",
    )
    .unwrap();
    // 10 has ended.
    let mut vm_locality = vm_locality("far");
    vm_locality.read_maps(&roots, &[process(9), process(10)]).unwrap();
    let text = vm_locality.text(TextStyle::from(true));
    assert!(
        text.ends_with("\nMapped\nNODE  OWN  MAPPED   PID  PROCESS\n1     no   2.0 MiB  9    qemu\n"),
        "{text}"
    );
    assert_eq!(
        vm_locality.json()["mapped"],
        json!([{"pid": 9, "name": "qemu", "nodes": {"1": 2 << 20}}])
    );
}
