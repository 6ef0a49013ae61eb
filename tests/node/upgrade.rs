//! An older release is upgraded to this one while its VMs run: STELIA_FROM is that release's package (`make long-upgrade`).

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use stelia_cpus::CpuSet;

use crate::contained::{configure, list, unconfigure};
use crate::crash::{main_pid, wait_state};
use crate::package::kept;
use crate::runner::{OTHER, qmp, start, start_on};
use crate::support::guest::Accel;
use crate::support::host::{Thread, cpus, leftovers, output, partitioned, read, run, thread, wait_until};
use crate::support::pods::{Pod, Threads, on_node_undoing};
use crate::support::promise::{assert_given_back, assert_isolated, counters, state};

/// The older runner, where no package puts one.
const RUNNER: &str = "/var/lib/older-runner";
/// A vCPU more for the guest that is made for it.
const PLUG: &str = r#"{"execute":"device_add","arguments":{"driver":"qemu64-x86_64-cpu","id":"c1","socket-id":1,"core-id":0,"thread-id":0}}"#;

/// With dpkg: apt takes two packages of one version for the same.
fn install(package: &str) {
    let before = main_pid();
    run(&["dpkg", "--force-downgrade", "-i", package]);
    wait_until("another daemon answers", || {
        let now = main_pid();
        (now != before && !now.is_empty()).then_some(())?;
        run(&["steliactl", "reconcile"]);
        Some(())
    });
}

/// What must be the same all the time: each thread, where it is and may run, and the partition of each VM.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placed {
    threads: BTreeMap<u32, Thread>,
    partitions: BTreeMap<String, (String, String)>,
    taken: CpuSet,
}

impl Placed {
    fn of(pods: &[&Pod]) -> Self {
        let all = pods.iter().flat_map(|pod| {
            let Threads { vcpus, anchor, others } = pod.threads();
            [vcpus, anchor, others].concat()
        });
        let threads = all.map(|thread| (thread.tid, thread)).collect();
        Self {
            threads,
            ..Self::partitions(pods)
        }
    }

    fn partitions(pods: &[&Pod]) -> Self {
        let file = |pod: &Pod, file: &str| read(pod.vcpu().join(file));
        let of = |pod: &&Pod| {
            let partition = (file(pod, "cpuset.cpus.partition"), file(pod, "cpuset.cpus.effective"));
            (pod.name.clone(), partition)
        };
        Self {
            threads: BTreeMap::new(),
            partitions: pods.iter().map(of).collect(),
            taken: partitioned(),
        }
    }

    /// The same threads and partitions as they are now: not a look for others, so that there are many looks.
    fn again(&self, pods: &[&Pod]) -> Self {
        let threads = self.threads.keys().filter_map(|tid| Some((*tid, thread(*tid)?)));
        Self {
            threads: threads.collect(),
            ..Self::partitions(pods)
        }
    }
}

/// Do something while threads and partitions are looked at again and again.
fn watched(pods: &[&Pod], before: &Placed, change: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    scope(|threads| {
        let looks = threads.spawn(|| {
            let mut looks = 0;
            while !ended.load(Ordering::Relaxed) {
                assert_eq!(&before.again(pods), before, "look {looks}");
                looks += 1;
                sleep(Duration::from_millis(2));
            }
            looks
        });
        // A change that fails must end the looks, too.
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
        ended.store(true, Ordering::Relaxed);
        let looks: u32 = looks.join().expect("what is looked at stays as it is");
        if let Err(panic) = changed {
            std::panic::resume_unwind(panic);
        }
        println!("  {looks} looks at {} threads", before.threads.len());
        assert!(looks > 50, "only {looks} looks");
    });
}

/// The VMs of the older release, each in the state it rests in there.
struct Vms {
    /// Isolated, and room for one more vCPU.
    grows: Pod,
    isolated: Pod,
    contained: Pod,
    registered: Pod,
}

impl Vms {
    fn start() -> Self {
        let other = |words: &[&'static str]| [words, &OTHER[..]].concat();
        let machine = ["-machine", "pc", "-smp", "1,sockets=2,maxcpus=2"];
        // Emulated: a vCPU of this very model is plugged.
        let grows = start_on(Accel::Tcg, "grows", "2", &[], &other(&machine));
        let isolated = start("isolated", "2", &[], &other(&["-smp", "2"]));
        // Nothing that ever answers on QMP.
        let runner = ["stelia-runner", "run", "--qmp", "/run/qmp", "--"];
        let command = [&runner[..], &["sh", "-c", "exec sleep infinity"]].concat();
        let registered = Pod::start("registered", &["--cpus", "1"], &command);
        grows.wait_running();
        isolated.wait_running();
        configure("partition = \"member\"\n");
        let contained = Pod::vm("contained", 1);
        unconfigure();
        let vms = Self {
            grows,
            isolated,
            contained,
            registered,
        };
        vms.wait_states();
        vms
    }

    fn all(&self) -> [&Pod; 4] {
        [&self.grows, &self.isolated, &self.contained, &self.registered]
    }

    fn wait_states(&self) {
        let states = ["isolated", "isolated", "contained", "floating"];
        for (pod, wanted) in self.all().into_iter().zip(states) {
            wait_state(pod, wanted);
        }
    }

    /// Each vCPU has a CPU of its own in a partition of the older release's kind, or in none.
    fn assert_seated(&self, seats: &Placed) {
        for (pod, vcpus) in [(&self.grows, 1), (&self.isolated, 2), (&self.contained, 1)] {
            let threads = seats.threads.values().filter(|thread| thread.cgroup == pod.vcpu());
            let own: Vec<&CpuSet> = threads.map(|thread| &thread.allowed).collect();
            let all = own.iter().fold(CpuSet::new(), |all, cpus| all.union(cpus));
            assert_eq!((own.len(), all.len()), (vcpus, vcpus), "{}: {own:?}", pod.name);
            assert!(all.is_subset(&pod.exclusive()), "{}: {all}", pod.name);
        }
        let partition = |pod: &Pod| seats.partitions[&pod.name].0.clone();
        assert_eq!(self.all().map(partition), ["isolated", "isolated", "member", "member"]);
        let isolated = self.grows.exclusive().union(&self.isolated.exclusive());
        assert_eq!(seats.taken, isolated);
    }
}

/// That the programs of this container are those of the package that was replaced.
fn assert_older(pod: &Pod) {
    let program = fs::read_link(format!("/proc/{}/exe", pod.pid)).expect("the runner");
    let program = program.display().to_string();
    assert!(program.ends_with("stelia-runner (deleted)"), "{program}");
}

#[test]
fn an_older_release_upgrades_under_its_vms_and_its_runners_work_on() {
    on_node_undoing(unconfigure, || {
        let newer = std::env::var("NODE_DEB").expect("NODE_DEB");
        install(&std::env::var("STELIA_FROM").expect("STELIA_FROM"));
        fs::copy("/usr/bin/stelia-runner", RUNNER).expect(RUNNER);
        let vms = Vms::start();
        let pods = vms.all();
        let before = Placed::of(&pods);
        vms.assert_seated(&before);
        let units = kept(&pods);
        println!("  before: {}", run(&["steliactl", "verify"]));

        watched(&pods, &before, || {
            install(&newer);
            vms.wait_states();
            println!("  after: {}", run(&["steliactl", "verify"]));
            assert_eq!(counters(), (0, 0), "drift found and repaired");
            // What a second look and another start of the new daemon find is nothing new.
            run(&["systemctl", "restart", "steliad"]);
            vms.wait_states();
            run(&["steliactl", "reconcile"]);
        });
        assert_eq!(Placed::of(&pods), before);
        assert_eq!(kept(&pods), units);
        assert_eq!(counters(), (0, 0), "drift found and repaired");
        let runner = |path: &str| fs::read(path).expect(path);
        assert!(
            runner(RUNNER) != runner("/usr/bin/stelia-runner"),
            "this is the same release"
        );
        pods.into_iter().for_each(assert_older);

        the_older_runners_know_the_newer_daemon(&vms, &before);
        everything_is_given_back(&vms);
        an_older_runner_registers_anew();
    });
}

fn the_older_runners_know_the_newer_daemon(vms: &Vms, before: &Placed) {
    for pod in [&vms.grows, &vms.isolated, &vms.contained] {
        wait_until("its runner reconnected", || {
            pod.logs().contains("the daemon is back").then_some(())
        });
    }
    let answer = qmp(&vms.grows, PLUG);
    assert!(answer.contains("return"), "{answer}");
    let pinned = || {
        let vcpus = vms.grows.threads().vcpus;
        let seated = |vcpu: &Thread| vcpu.cgroup == vms.grows.vcpu() && vcpu.allowed.len() == 1;
        (vcpus.len() == 2 && vcpus.iter().all(seated)).then_some(vcpus)
    };
    let vcpus = wait_until("the vCPU that it handed over is pinned", pinned);
    assert!(vcpus[0].allowed.is_disjoint(&vcpus[1].allowed), "{vcpus:?}");
    assert_eq!(before.threads.get(&vcpus[0].tid), Some(&vcpus[0]));
    assert_eq!(Placed::partitions(&vms.all()).partitions, before.partitions);
    run(&["steliactl", "verify"]);
}

fn everything_is_given_back(vms: &Vms) {
    // By its own runner, when the VM ends.
    qmp_quit(&vms.isolated);
    wait_until("its runner deregistered", || {
        vms.isolated.logs().contains("INFO deregistered").then_some(())
    });
    wait_until("its scope is gone", || (!vms.isolated.scope().exists()).then_some(()));
    assert_eq!(partitioned(), vms.grows.exclusive());
    // By the operator.
    run(&["steliactl", "deregister", &vms.contained.uid]);
    wait_until("the host's units have every CPU again", || {
        let all = |unit: &str| list(unit).is_empty() || cpus(&list(unit)) == cpus("0-7");
        ["system.slice", "init.scope"]
            .iter()
            .all(|unit| all(unit))
            .then_some(())
    });
    run(&["steliactl", "deregister", &vms.registered.uid]);
    let threads = vms.grows.threads();
    run(&["steliactl", "deregister", &vms.grows.uid]);
    assert_given_back(&vms.grows, threads);
    for pod in vms.all() {
        assert_eq!(state(pod), None, "{}", pod.name);
        run(&["kubelet-standin", "pod", "delete", &pod.name, "--grace", "0"]);
    }
    wait_until("nothing is left", || leftovers().is_empty().then_some(()));
}

/// `quit` on the monitor that the runner does not use; QEMU may be gone before it answers.
fn qmp_quit(pod: &Pod) {
    let quit =
        r#"(printf '{"execute":"qmp_capabilities"}\n{"execute":"quit"}\n'; sleep 2) | socat - "UNIX-CONNECT:$1""#;
    let socket = format!("/proc/{}/root/run/other", pod.pid);
    output(&["sh", "-c", quit, "sh", &socket]);
}

fn an_older_runner_registers_anew() {
    let accel = Accel::of_node();
    let options = [accel.device(), &["--cpus", "2"]].concat();
    let command = [
        &[RUNNER, "run", "--qmp", "/run/qmp", "--"],
        &accel.qemu()[..],
        &["-smp", "2"],
        &OTHER,
    ];
    let pod = Pod::start("anew", &options, &command.concat());
    pod.wait_running();
    assert_isolated(&pod, 2);
    let program = fs::read_link(format!("/proc/{}/exe", pod.pid)).expect("the runner");
    assert_eq!(program.to_str(), Some(RUNNER));
    qmp_quit(&pod);
    wait_until("its runner deregistered", || {
        pod.logs().contains("INFO deregistered").then_some(())
    });
    wait_until("its scope is gone", || (!pod.scope().exists()).then_some(()));
}
