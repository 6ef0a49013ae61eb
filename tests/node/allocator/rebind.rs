//! Rebind: running VMs move to better CPUs.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stelia_cpus::CpuSet;

use super::{Sleeper, instance, nodes, on_allocator, vm};
use crate::crash::{Failpoints, isolate, main_pid, quiet_vm, wait_state};
use crate::runner::probe;
use crate::support::host::{CGROUP, cpus, output, partitioned, read, run, wait_until};
use crate::support::pods::Pod;
use crate::support::promise::{assert_isolated, state};

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

/// `steliactl rebind` with these arguments, as JSON.
fn rebind(arguments: &[&str]) -> Value {
    let out = output(&[&["steliactl", "--json=short", "rebind"], arguments].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    println!("  rebind {arguments:?}: {} {text}", out.status);
    let mut printed: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    printed["success"] = out.status.success().into();
    printed
}

fn exclusive(pod: &Pod) -> CpuSet {
    cpus(instance(pod)["exclusive"].as_str().expect("a CPU list"))
}

/// The pod where it is now.
fn moved(pod: Pod) -> Pod {
    let cpus = Some(exclusive(&pod).to_string());
    Pod { cpus, ..pod }
}

/// How long its vCPU threads ran, ns.
fn ran(pod: &Pod) -> u64 {
    let time = |tid: u32| -> u64 {
        let text = read(format!("/proc/{tid}/schedstat"));
        let first = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
        first.expect("schedstat")
    };
    pod.threads().vcpus.iter().map(|vcpu| time(vcpu.tid)).sum()
}

fn wait_running_on(pod: &Pod) {
    let before = ran(pod);
    wait_until(&format!("{} runs on", pod.name), || (ran(pod) > before).then_some(()));
    assert_eq!(probe(pod, "readiness"), (true, "isolated".into()));
}

fn thread_ids(pod: &Pod) -> Vec<(u32, u64)> {
    let threads = pod.threads().vcpus;
    threads.iter().map(|thread| (thread.tid, thread.start)).collect()
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
        let (ids, still_ids) = (thread_ids(&machine), thread_ids(&still));

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
        assert_eq!(
            (cpus(told["from"].as_str().expect("from")), to.len()),
            (from.clone(), 2)
        );
        assert_isolated(&machine, 2);
        assert_eq!(thread_ids(&machine), ids);
        let still = moved(still);
        assert_eq!(assert_isolated(&still, 2).vcpus.len(), 2);
        assert_eq!(thread_ids(&still), still_ids);
        // The CPUs it left are everybody's again.
        assert_eq!(partitioned(), to.union(&still.exclusive()));
        wait_running_on(&machine);
        wait_running_on(&still);
        let journal = run(&["journalctl", "-b", "-u", "steliad", "--no-pager", "-o", "cat"]);
        let line = format!("({}) moved from CPUs {from} to {to}: {gain}", machine.uid);
        assert!(journal.contains(&line), "{journal}");
        let explained = run(&["steliactl", "explain", &machine.uid]);
        assert!(
            explained.contains(&format!("rebound from {from} to {to}")),
            "{explained}"
        );
        // Nothing is left to gain; and it is so for the next daemon as well.
        assert_eq!(rebind(&[])["moves"], Value::Array(Vec::new()));
        run(&["systemctl", "restart", "steliad.service"]);
        wait_state(&machine, "isolated");
        assert_eq!(exclusive(&machine), to);
        assert_isolated(&machine, 2);
    });
}

/// A cgroup that has a CPU in its exclusive list, until the value is dropped: the kernel keeps it out of its siblings' lists.
struct Blocker(PathBuf);

impl Blocker {
    fn on(cpu: u32) -> Self {
        let blocker = Self(Path::new(CGROUP).join("blocker"));
        fs::create_dir(&blocker.0).expect("mkdir");
        let list = blocker.0.join("cpuset.cpus.exclusive");
        fs::write(&list, cpu.to_string()).unwrap_or_else(|e| panic!("{cpu}: {e}"));
        assert_eq!(read(&list), cpu.to_string());
        blocker
    }
}

impl Drop for Blocker {
    fn drop(&mut self) {
        // What is left is told by the frame of every test.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_move_that_fails_in_the_middle_leaves_the_vm_where_it_was() {
    on_allocator(SETTINGS, || {
        let fillers = fillers();
        let machine = vm("machine", 2, &[], CORES);
        assert_fragmented(&machine.exclusive());
        fillers.iter().for_each(Sleeper::give_back);
        let before = assert_isolated(&machine, 2);
        let planned = rebind(&["--dry-run"]);
        let to = cpus(planned["moves"][0]["to"].as_str().expect("a CPU list"));
        // Somebody else has one of its next CPUs, which only the kernel knows.
        let next = to.difference(&machine.exclusive()).iter().next().expect("a CPU");
        let blocker = Blocker::on(next);
        let failed = rebind(&[]);
        assert_eq!(
            (&failed["phase"], &failed["success"]),
            (&"Failed".into(), &false.into())
        );
        let reason = failed["reason"].as_str().expect("a reason");
        let stays = format!("pod {} stays on {}", machine.uid, machine.exclusive());
        assert!(reason.contains(&stays), "{reason}");
        assert_eq!(failed["moves"], Value::Array(Vec::new()));
        assert_eq!(assert_isolated(&machine, 2), before);
        assert_eq!(exclusive(&machine), machine.exclusive());
        wait_running_on(&machine);
        drop(blocker);
        assert_eq!(rebind(&[&*machine.uid])["phase"], "Succeed");
        let machine = moved(machine);
        assert_eq!(nodes(&machine.exclusive()).len(), 1);
        let after = assert_isolated(&machine, 2);
        let ids =
            |threads: &crate::support::pods::Threads| threads.vcpus.iter().map(|vcpu| vcpu.tid).collect::<Vec<_>>();
        assert_eq!(ids(&after), ids(&before));
    });
}

#[test]
fn a_daemon_killed_in_the_middle_of_a_job_leaves_the_vm_whole() {
    on_allocator(SETTINGS, || {
        let fillers = fillers();
        let quiet = given_cpus(quiet_vm("machine"));
        let ids = thread_ids(&quiet);
        let failpoints = Failpoints::mount();
        // Every change of a job is one that it may die before; model tests try each, here it is every third.
        for n in (1..).step_by(3) {
            let own = exclusive(&quiet);
            assert_fragmented(&own);
            fillers.iter().for_each(Sleeper::give_back);
            let daemon = failpoints.daemon_that_dies_at(n);
            let out = output(&["steliactl", "--json=short", "rebind"]);
            let told = String::from_utf8_lossy(&out.stdout).into_owned();
            wait_state(&quiet, "isolated");
            let died = main_pid() != daemon;
            // Who waited for the job's end is told what became of it, unless the daemon died before it had a number.
            match serde_json::from_str::<Value>(&told) {
                Ok(told) => assert_eq!(told["phase"], if died { "Unknown" } else { "Succeed" }, "{told}"),
                Err(_) => assert!(died && !out.status.success(), "{out:?}"),
            }
            let now = moved(Pod::show(&quiet.name));
            let at = now.exclusive();
            println!("  died before change {n}: {died}; {own} -> {at}");
            assert_isolated(&now, 2);
            assert_eq!(thread_ids(&now), ids);
            assert!(at == own || nodes(&at).len() == 1, "{at}");
            if !died {
                assert_eq!(nodes(&at).len(), 1);
                assert!(n > 10, "only {n} changes");
                return;
            }
            run(&["steliactl", "deregister", &quiet.uid]);
            assert_eq!(state(&quiet), None);
            fill(&fillers);
            isolate(&quiet);
        }
    });
}

/// Registered by root, with the CPUs of its own.
fn given_cpus(pod: Pod) -> Pod {
    isolate(&pod);
    wait_state(&pod, "isolated");
    moved(pod)
}
