//! steliad's own allocator (`cpu-source = "steliad"`), beside a kubelet whose CPU manager does nothing.
//!
//! The node's cores are the CPUs 0-1, 2-3 | 4-5, 6-7, its NUMA nodes 0-3 and 4-7.

mod classes;
mod life;
mod rebind;
mod resize;

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use stelia_cpus::CpuSet;

use crate::support::*;

const DROP_INS: &str = "/etc/stelia/steliad.toml.d";
const DROP_IN: &str = "/etc/stelia/steliad.toml.d/80-allocator.toml";

/// Run a test body while steliad chooses the CPUs.
fn on_allocator(settings: &str, body: impl FnOnce()) {
    on_node_undoing(unconfigure, || {
        configure(settings);
        run("kubelet-standin init --policy none");
        body();
    });
}

fn configure(settings: &str) {
    fs::create_dir_all(DROP_INS).expect(DROP_INS);
    put(DROP_IN, format!("cpu-source = \"steliad\"\n{settings}\n"));
    run("systemctl reload steliad");
}

fn unconfigure() {
    run("kubelet-standin init");
    if fs::remove_file(DROP_IN).is_ok() {
        run("systemctl reload steliad");
    }
}

/// A container without a VM, that root registers over the system bus as often as wanted.
struct Sleeper {
    pod: Pod,
    anchor: u32,
}

impl Sleeper {
    fn start(name: &str, options: &[&str]) -> Self {
        let pod = Pod::start(name, options, &["sh", "-c", "sleep 100000 & wait; true"]);
        let anchor = wait_until(&format!("the anchor of {name}"), || {
            container_of(pod.pid).into_keys().find(|pid| *pid != pod.pid)
        });
        Self { pod, anchor }
    }

    /// Register with options as words, `qos=LSE cpus=2`; answers the CPUs of its own.
    fn get(&self, words: &str) -> CpuSet {
        let bus = Bus::open();
        let path = bus.try_register(&self.pod.uid, "", options(Some(&pidfd(self.anchor)), words));
        let answer = path
            .and_then(|path| bus.block_on(async { instance_at(&bus.connection, &path).await.exclusive_cpus().await }));
        cpus(&answer.unwrap_or_else(|error| panic!("{words}: {error}")))
    }

    fn give_back(&self) {
        self.pod.deregister();
    }

    fn float(&self) -> CpuSet {
        self.pod.float_cpus()
    }

    fn wait_float(&self, expected: &CpuSet) {
        let what = format!("{} on {expected}", self.pod.name);
        wait_until(&what, || self.float() == *expected);
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
fn moved(pod: Pod) -> Pod {
    let cpus = pod.described()["exclusive"].as_str().map(str::to_owned);
    Pod { cpus, ..pod }
}

/// What a command of `steliactl`'s prints as JSON, and whether it succeeded.
fn steliactl(command: &[&str], arguments: &[&str]) -> Value {
    let (mut printed, out) = printed(&[&["steliactl", "--json=short"], command, arguments].concat());
    printed["success"] = out.status.success().into();
    printed
}

/// How an instance got what it has.
fn allocation(pod: &Pod) -> Value {
    pod.described()["allocation"].clone()
}

/// One of the pools.
fn pool_of(name: &str) -> CpuSet {
    let pools = describe()["node"]["pools"].clone();
    cpus(pools[name].as_str().unwrap_or_else(|| panic!("{name}: {pools}")))
}

fn wait_pool(name: &str, expected: &str) {
    wait_until(&format!("pool {name} is {expected:?}"), || {
        pool_of(name) == cpus(expected)
    });
}

/// All CPUs but these.
fn all_but(others: &[&CpuSet]) -> CpuSet {
    let all = cpus("0-7");
    others.iter().fold(all, |rest, others| rest.difference(others))
}

fn cores(cpus: &CpuSet) -> BTreeSet<u32> {
    cpus.iter().map(|cpu| cpu / 2).collect()
}

fn nodes(cpus: &CpuSet) -> BTreeSet<u32> {
    cpus.iter().map(|cpu| cpu / 4).collect()
}

/// How many CPUs, cores and NUMA nodes.
fn shape(cpus: &CpuSet) -> (usize, usize, usize) {
    (cpus.len(), cores(cpus).len(), nodes(cpus).len())
}
