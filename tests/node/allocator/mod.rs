//! steliad's own allocator (`cpu-source = "steliad"`), beside a kubelet whose CPU manager does nothing.
//!
//! The node's cores are the CPUs 0-1, 2-3 | 4-5, 6-7, its NUMA nodes 0-3 and 4-7.

mod classes;
mod rebind;
mod resize;

use std::collections::BTreeSet;

use serde_json::Value;
use stelia_cpus::CpuSet;

use crate::support::*;

/// Run a test body while steliad chooses the CPUs.
fn on_allocator(settings: &str, body: impl FnOnce()) {
    on_allocator_undoing(|| (), settings, body);
}

/// The same, with something more to undo.
fn on_allocator_undoing(undo: impl FnOnce(), settings: &str, body: impl FnOnce()) {
    let undo = || {
        undo();
        run("kubelet-standin init");
    };
    on_node_undoing(undo, || {
        configure(&format!("cpu-source = \"steliad\"\n{settings}\n"));
        run("kubelet-standin init --policy none");
        body();
    });
}

/// Root registers it over the system bus as often as wanted.
impl Sleeper {
    /// Register with options as words, `qos=LSE cpus=2`; answers the CPUs of its own.
    fn get(&self, words: &str) -> CpuSet {
        let bus = Bus::open();
        let path = bus.try_register(&self.pod.uid, "", options(Some(&pidfd(self.anchor)), words));
        let answer = path
            .and_then(|path| bus.block_on(async { instance_at(&bus.connection, &path).await.exclusive_cpus().await }));
        cpus(&answer.unwrap_or_else(|error| panic!("{words}: {error}")))
    }

    fn wait_float(&self, expected: &CpuSet) {
        let what = format!("{} on {expected}", self.pod.name);
        wait_until(&what, || self.pod.float_cpus() == *expected);
        let mut others = self.pod.threads().others;
        others.retain(|thread| thread.tid != self.anchor);
        for thread in others {
            thread.assert_in(&self.pod.float(), expected);
        }
    }
}

/// A VM whose runner asks for CPUs with these options, its guest running.
fn vm(name: &str, vcpus: u32, options: &[&str], runner: &[&str]) -> Pod {
    let pod = Pod::start_vm_with(name, vcpus, options, &[&["--qmp", "/run/qmp"], runner].concat());
    given(pod)
}

/// When its guest runs: the pod with the CPUs that it was given.
fn given(pod: Pod) -> Pod {
    pod.wait_running();
    moved(pod)
}

/// The pod with the CPUs that it has now.
pub fn moved(pod: Pod) -> Pod {
    let cpus = pod.described()["exclusive"].as_str().map(str::to_owned);
    Pod { cpus, ..pod }
}

/// What a command of `steliactl`'s prints as JSON, and whether it succeeded.
fn steliactl(command: &[&str], arguments: &[&str]) -> Value {
    let (mut printed, out) = printed(&[&["steliactl", "--json=short"], command, arguments].concat());
    printed["success"] = out.status.success().into();
    printed
}

fn allocation(pod: &Pod) -> Value {
    pod.described()["allocation"].clone()
}

fn pool_of(name: &str) -> CpuSet {
    let pools = describe()["node"]["pools"].clone();
    cpus(pools[name].as_str().unwrap_or_else(|| panic!("{name}: {pools}")))
}

fn all_but(others: &[&CpuSet]) -> CpuSet {
    let all = cpus("0-7");
    others.iter().fold(all, |rest, others| rest.difference(others))
}

fn nodes(cpus: &CpuSet) -> BTreeSet<u32> {
    cpus.iter().map(|cpu| cpu / 4).collect()
}

/// How many CPUs, cores and NUMA nodes.
fn shape(cpus: &CpuSet) -> (usize, usize, usize) {
    let cores: BTreeSet<u32> = cpus.iter().map(|cpu| cpu / 2).collect();
    (cpus.len(), cores.len(), nodes(cpus).len())
}
