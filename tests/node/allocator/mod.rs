//! steliad's own allocator (`cpu-source = "steliad"`), beside a kubelet whose CPU manager does nothing.
//!
//! The node's cores are the CPUs 0-1, 2-3 | 4-5, 6-7, its NUMA nodes 0-3 and 4-7.

mod bounds;
mod classes;
mod evaluate;
mod life;
mod policies;
mod quota;
mod rebind;
mod resize;
mod takeover;

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use stelia_api::client::InstanceProxy;
use stelia_cpus::CpuSet;
use zbus::connection::Builder;

use crate::bad_input::assert_refused;
use crate::client::{Refusal, block_on, pidfd, refusal, register_with};
use crate::support::host::{container_of, cpus, read, run, scopes, wait_until};
use crate::support::pods::{Pod, on_node_undoing};
use crate::support::promise::describe;

const DROP_INS: &str = "/etc/stelia/steliad.toml.d";
const DROP_IN: &str = "/etc/stelia/steliad.toml.d/80-allocator.toml";

/// Run a test body while steliad chooses the CPUs. Who is still there from before comes first: `before` runs under kubelet's
/// static policy.
fn on_allocator_after<T>(settings: &str, before: impl FnOnce() -> T, body: impl FnOnce(T)) {
    on_node_undoing(unconfigure, || {
        let there = before();
        configure(settings);
        run(&["kubelet-standin", "init", "--policy", "none"]);
        body(there);
    });
}

fn on_allocator(settings: &str, body: impl FnOnce()) {
    on_allocator_after(settings, || (), |()| body());
}

fn configure(settings: &str) {
    fs::create_dir_all(DROP_INS).expect(DROP_INS);
    fs::write(DROP_IN, format!("cpu-source = \"steliad\"\n{settings}\n")).expect(DROP_IN);
    run(&["systemctl", "reload", "steliad"]);
}

fn unconfigure() {
    run(&["kubelet-standin", "init"]);
    if fs::remove_file(DROP_IN).is_ok() {
        run(&["systemctl", "reload", "steliad"]);
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
    fn ask(&self, words: &str) -> Result<CpuSet, Refusal> {
        let answer: zbus::Result<String> = block_on(async {
            let bus = Builder::system().build().await.expect("bus");
            let path = register_with(&bus, &self.pod.uid, &pidfd(self.anchor), words).await?;
            let instance = InstanceProxy::builder(&bus).path(path).build().await?;
            instance.exclusive_cpus().await
        });
        let answer = match answer {
            Ok(text) => Ok(cpus(&text)),
            error => Err(refusal(error)),
        };
        println!("  {} asks {words:?}: {answer:?}", self.pod.name);
        answer
    }

    /// The same, granted.
    fn get(&self, words: &str) -> CpuSet {
        self.ask(words).unwrap_or_else(|refusal| panic!("{words}: {refusal:?}"))
    }

    /// The same, not granted: nothing is changed.
    fn assert_not_allocated(&self, words: &str, mentions: &str) {
        let before = (pools(), scopes(), read(self.pod.origin().join("cgroup.procs")));
        let refusal = self.ask(words).expect_err(words);
        assert_refused(&refusal, "NotAllocated", mentions);
        let after = (pools(), scopes(), read(self.pod.origin().join("cgroup.procs")));
        assert_eq!(after, before, "{words}");
    }

    fn give_back(&self) {
        run(&["steliactl", "deregister", &self.pod.uid]);
    }

    /// What became of its exclusive policy.
    fn exclusivity(&self) -> String {
        let allocation = allocation(&self.pod);
        let text = allocation["exclusivity"].as_str();
        text.unwrap_or_else(|| panic!("{allocation}")).to_owned()
    }

    fn float(&self) -> CpuSet {
        cpus(&read(self.pod.float().join("cpuset.cpus")))
    }

    fn wait_float(&self, expected: &CpuSet) {
        let what = format!("{} on {expected}", self.pod.name);
        wait_until(&what, || (self.float() == *expected).then_some(()));
        for thread in self
            .pod
            .threads()
            .others
            .iter()
            .filter(|thread| thread.tid != self.anchor)
        {
            assert_eq!(
                (&thread.cgroup, &thread.allowed),
                (&self.pod.float(), expected),
                "{thread:?}"
            );
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
    let cpus = instance(&pod)["exclusive"].as_str().map(str::to_owned);
    Pod { cpus, ..pod }
}

fn instance(pod: &Pod) -> Value {
    describe()["node"]["instances"][&pod.uid].clone()
}

/// How an instance got what it has.
fn allocation(pod: &Pod) -> Value {
    instance(pod)["allocation"].clone()
}

fn pools() -> Value {
    describe()["node"]["pools"].clone()
}

/// One of the pools.
fn pool_of(name: &str) -> CpuSet {
    let pools = pools();
    cpus(pools[name].as_str().unwrap_or_else(|| panic!("{name}: {pools}")))
}

fn wait_pool(name: &str, expected: &str) {
    wait_until(&format!("pool {name} is {expected:?}"), || {
        (pool_of(name) == cpus(expected)).then_some(())
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
