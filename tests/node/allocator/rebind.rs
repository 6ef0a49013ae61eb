//! Rebind: running VMs move to better CPUs.

use serde_json::Value;
use stelia_cpus::CpuSet;

use super::{moved, nodes, on_allocator, steliactl, vm};
use crate::support::*;

const CORES: &[&str] = &["--cpu-bind-policy", "FullPCPUs"];
/// CPU 0 is nobody's: three CPUs of one NUMA node and four of the other can be had.
const SETTINGS: &str = "reserved-cpus = \"0\"\ncpu-bind-policy = \"FullPCPUs\"\nrebind-interval-s = 0";

/// Pods whose CPUs leave one free on either NUMA node.
fn fillers() -> [Sleeper; 2] {
    let fillers = ["small", "large"].map(|name| Sleeper::start(name, &[]));
    fill(&fillers);
    fillers
}

fn fill(fillers: &[Sleeper; 2]) {
    fillers[0].get("cpus=2");
    fillers[1].get("cpus=3");
}

fn assert_fragmented(own: &CpuSet) {
    assert_eq!((own.len(), nodes(own).len()), (2, 2), "{own}");
}

fn rebind(arguments: &[&str]) -> Value {
    steliactl(&["rebalance"], arguments)
}

/// How long its vCPU threads ran, ns.
fn ran(pod: &Pod) -> u64 {
    pod.threads().vcpus.iter().map(|vcpu| run_time(vcpu.tid)).sum()
}

fn wait_running_on(pod: &Pod) {
    let before = ran(pod);
    wait_until(&format!("{} runs on", pod.name), || ran(pod) > before);
    assert_eq!(probe(pod, "readiness"), (true, "isolated".into()));
}

#[test]
fn a_running_vm_moves_to_one_numa_node_and_no_guest_stops() {
    on_allocator(SETTINGS, || {
        let fillers = fillers();
        let machine = vm("machine", 2, &[], CORES);
        assert_fragmented(&machine.exclusive());
        fillers.iter().for_each(Sleeper::give_back);
        let still = vm("still", 2, &[], CORES);
        let before = (assert_isolated(&machine, 2), assert_isolated(&still, 2));
        let (ids, still_ids) = (machine.threads().identities(), still.threads().identities());

        let planned = rebind(&["--dry-run"]);
        assert_eq!((&planned["job"], &planned["success"]), (&Value::Null, &true.into()));
        let gain = planned["moves"][0]["gain"].as_str().expect("a gain").to_owned();
        assert!(gain.contains("NUMA nodes: 2 -> 1"), "{planned}");
        assert_eq!((assert_isolated(&machine, 2), assert_isolated(&still, 2)), before);

        let done = rebind(&[]);
        assert_eq!((&done["phase"], &done["success"]), (&"Succeed".into(), &true.into()));
        assert_eq!(done["moves"], planned["moves"]);
        let (from, machine) = (machine.exclusive(), moved(machine));
        let to = machine.exclusive();
        let told = &done["moves"][0];
        assert_eq!((told["pod_uid"].as_str(), nodes(&to).len()), (Some(&*machine.uid), 1));
        assert_eq!(cpus(told["from"].as_str().expect("from")), from);
        assert_eq!(to.len(), 2);
        assert_isolated(&machine, 2);
        assert_eq!(machine.threads().identities(), ids);
        let still = moved(still);
        assert_eq!(assert_isolated(&still, 2).vcpus.len(), 2);
        assert_eq!(still.threads().identities(), still_ids);
        // The CPUs it left are everybody's again.
        assert_eq!(partitioned(), to.union(&still.exclusive()));
        wait_running_on(&machine);
        wait_running_on(&still);
        let journal = journal("-u steliad");
        let line = format!("({}) moved from CPUs {from} to {to}: {gain}", machine.uid);
        assert!(journal.contains(&line), "{journal}");
        let explained = run(&["steliactl", "why", &machine.uid]);
        assert_says(&explained, &[&format!("rebound from {from} to {to}")]);
        // Nothing is left to gain; and it is so for the next daemon as well.
        assert_eq!(rebind(&[])["moves"], Value::Array(Vec::new()));
        restart("steliad.service");
        machine.wait_state("isolated");
        assert_eq!(cpus(machine.described()["exclusive"].as_str().expect("a CPU list")), to);
        assert_isolated(&machine, 2);
    });
}
