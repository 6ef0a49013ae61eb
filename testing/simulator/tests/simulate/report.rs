//! `report`: the whole node in one text.

use super::*;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    fs::write(path, text).expect("write");
}

/// A thread of `pid` as the kernel shows it, which ran on this CPU last.
fn thread(root: &Path, pid: u64, tid: u64, start: u64, cgroup: &str, cpu: u32) {
    fs::create_dir_all(root.join(format!("proc/{pid}/task/{tid}"))).expect("folders");
    let zeros = "0 ".repeat(16);
    write(root, &format!("proc/{tid}/comm"), "qemu\n");
    let status = format!("NSpid:\t{tid}\t7\nCpus_allowed_list:\t{cpu}\n");
    write(root, &format!("proc/{tid}/status"), &status);
    let task = format!("proc/{tid}/task/{tid}");
    write(root, &format!("{task}/cgroup"), &format!("0::{cgroup}\n"));
    let stat = format!("{tid} (qemu) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {start} {zeros}{cpu} 0\n");
    write(root, &format!("{task}/stat"), &stat);
}

#[test]
fn the_report_has_what_the_other_commands_say_of_the_node_and_its_vms() {
    let simulation = Simulation::start(&scenario(""));
    let described = simulation.described();
    let instance = &described["node"]["instances"][VM];
    let scope = instance["scope"].as_str().expect("a scope");
    let files = tempfile::tempdir().expect("directory");
    let root = files.path();
    write(root, "proc/sys/kernel/hostname", "worker-1\n");
    write(root, &format!("sys/fs/cgroup{scope}/instance/cgroup.procs"), "9000\n");
    thread(root, 9000, 9000, 1, &format!("{scope}/instance/float"), 6);
    for vcpu in instance["vcpus"].as_array().expect("vCPUs") {
        let of_task = |name: &str| vcpu["task"][name].as_u64().expect("a number");
        let cpu = u32::try_from(vcpu["cpu"].as_u64().expect("a CPU")).expect("a CPU");
        let cgroup = format!("{scope}/instance/vcpu");
        thread(root, 9000, of_task("id"), of_task("start"), &cgroup, cpu);
    }
    let root = format!("--root={}", root.display());
    let text = simulation.ctl(&[&root, "report", "--seconds", "0.1"]);
    for part in [
        "== Host ==\nhostname:   worker-1\n",
        "== Node ==\n",
        "== VMs ==\n",
        "== Verification ==\n",
        "== Readiness of the node ==\nFAIL  ",
        "== Interrupts and kernel threads ==\n",
        "== Load ==\n",
        "== CPUs ==\n",
        "== VMs in detail ==\n",
        "== Not in this report ==\n",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    let json = simulation.ctl(&[&root, "--json", "report", "-s", "0.1"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let vms = json["show"].as_array().expect("VMs");
    assert_eq!(vms.len(), 2);
    let mut vms = vms.iter().map(|vm| &vm["instance"]);
    let vm = vms.find(|vm| vm["pod"] == VM).expect("the VM");
    assert_eq!(vm["exclusive"], "2-3");
    for member in ["host", "status", "list", "verify", "doctor", "noise", "top", "map"] {
        assert!(!json[member].is_null(), "{member} is not in {json}");
    }
}
