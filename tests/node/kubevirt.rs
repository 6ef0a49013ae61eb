//! A VM as KubeVirt runs it, beside what virt-handler does to it. Neither is KubeVirt: the launcher is a shell of its shape, and
//! the steps are those of `HandleHousekeeping` and `managerPath` in KubeVirt's `pkg/virt-handler`.

use std::fs;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sched::{CpuSet as Mask, sched_setaffinity};
use nix::unistd::Pid;
use stelia_cpus::CpuSet;

use crate::adopted::refused;
use crate::contained::{configure, unconfigure};
use crate::guest::Accel;
use crate::host::{Thread, all_pids, container_of, cpus, kind, partitioned, read, run, wait_until, wait_until_or};
use crate::in_place::is_sid;
use crate::kvm::needs_kvm;
use crate::pods::{Pod, on_node_undoing};
use crate::promise::{counters, near_pool, state};

const RULE: &str = "audit-interval-s = 3600\n[[adopt]]\nuse = \"kubevirt\"\ncontainers = [\"instance\"]\n";

/// `virt-launcher-monitor`, below it `virt-launcher`, below that `virtqemud` and QEMU with two vCPUs; three CPUs.
fn launched() -> Pod {
    let qemu = [&Accel::Kvm.qemu()[..], &["-smp", "2"]].concat().join(" ");
    let launcher = format!("/tmp/virtqemud 100000 & {qemu} & wait");
    let monitor = format!("/tmp/virt-launcher -c '{launcher}' & wait; sleep 100000");
    let shell = format!(
        "cp /bin/sh /tmp/virt-launcher-monitor; cp /bin/sh /tmp/virt-launcher; cp /bin/sleep /tmp/virtqemud; \
         exec /tmp/virt-launcher-monitor -c \"{monitor}\""
    );
    let options = [Accel::Kvm.device(), &["--cpus", "3", "--runtime", "runc"]].concat();
    Pod::start("virt-launcher-web-x7k2p", &options, &["sh", "-c", &shell])
}

/// A VM of KubeVirt's with `isolateEmulatorThread`.
struct Web {
    pod: Pod,
    /// QEMU.
    vmm: u32,
    vcpus: Vec<Thread>,
    /// The CPUs of the vCPUs.
    pinned: Vec<u32>,
    /// The one that `isolateEmulatorThread` costs.
    emulator: CpuSet,
}

impl Web {
    /// Its vCPUs pinned as libvirt pins them.
    fn start() -> Self {
        let pod = launched();
        let (vmm, vcpus) = wait_until("the vCPU threads", || {
            let mut all = container_of(pod.pid).into_iter();
            let is_vcpu = |thread: &Thread| thread.name.starts_with("CPU ");
            let (vmm, threads) = all.find(|(_, threads)| threads.iter().any(is_vcpu))?;
            let vcpus: Vec<Thread> = threads.into_iter().filter(is_vcpu).collect();
            (vcpus.len() == 2).then_some((vmm, vcpus))
        });
        let exclusive = pod.exclusive();
        let mut own = exclusive.iter();
        let pinned: Vec<u32> = own.by_ref().take(2).collect();
        let emulator = own.collect();
        for (vcpu, cpu) in vcpus.iter().zip(&pinned) {
            pin(vcpu.tid, *cpu).expect("pinned");
        }
        Self {
            pod,
            vmm,
            vcpus,
            pinned,
            emulator,
        }
    }

    fn housekeeping(&self) -> PathBuf {
        self.pod.origin().join("housekeeping")
    }

    /// What virt-handler does each time it looks at a VM.
    fn sync(&self) {
        let (origin, housekeeping) = (self.pod.origin(), self.housekeeping());
        fs::create_dir_all(&housekeeping).expect("create housekeeping");
        fs::write(housekeeping.join("cgroup.type"), "threaded").expect("threaded");
        fs::write(origin.join("cgroup.subtree_control"), "+cpuset").expect("the controller");
        fs::write(housekeeping.join("cpuset.cpus"), self.emulator.to_string()).expect("its CPUs");
        for thread in read(origin.join("cgroup.threads")).lines() {
            let comm = fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
            if !(comm.contains("CPU ") && comm.contains("KVM")) {
                let _ = fs::write(housekeeping.join("cgroup.threads"), thread);
            }
        }
    }

    /// The cgroup that virt-handler takes for the container's, by the launcher's process.
    fn manager_path(&self) -> PathBuf {
        let launcher = container_of(self.pod.pid).into_values().flatten();
        let mut launcher = launcher.filter(|thread| thread.name == "virt-launcher");
        let mut found = launcher.next().expect("the launcher").cgroup;
        if found.ends_with("housekeeping") {
            found.pop();
        }
        found
    }

    /// Its vCPUs have the CPUs that they were pinned to, everything else of the container runs on the emulator's.
    fn assert_whole(&self) {
        let pod = &self.pod;
        let own: CpuSet = self.pinned.iter().copied().collect();
        let float = match pod.is_in_place() {
            true => self.emulator.clone(),
            false => near_pool(pod).union(&self.emulator),
        };
        for thread in container_of(pod.pid).into_values().flatten() {
            match self.vcpus.iter().position(|vcpu| vcpu.tid == thread.tid) {
                Some(vcpu) => {
                    let cpu = CpuSet::from_iter([self.pinned[vcpu]]);
                    assert_eq!((&thread.cgroup, &thread.allowed), (&pod.vcpu(), &cpu), "{thread:?}");
                }
                // In a scope the first process stays behind.
                None if thread.tid == pod.pid && !pod.is_in_place() => assert_eq!(thread.cgroup, pod.origin()),
                None => assert_eq!((&thread.cgroup, &thread.allowed), (&pod.float(), &float), "{thread:?}"),
            }
        }
        assert_eq!(read(pod.vcpu().join("cpuset.cpus.partition")), kind());
        assert!(own.is_subset(&partitioned()) && self.emulator.is_disjoint(&partitioned()));
        run(&["steliactl", "verify", "--require=isolated", &pod.uid]);
    }

    fn until_whole(&self) {
        let refused = || format!(": {:?}", refused(&self.pod));
        let isolated = || (state(&self.pod).as_deref() == Some("isolated")).then_some(());
        wait_until_or("it is adopted", refused, isolated);
        self.assert_whole();
    }
}

fn pin(task: u32, cpu: u32) -> Result<(), Errno> {
    let mut mask = Mask::new();
    mask.set(cpu as usize).expect("a CPU");
    sched_setaffinity(Pid::from_raw(i32::try_from(task).expect("a task")), &mask)
}

/// The kernel's thread for the emulated timer of the node's only VM, and the CPUs it may use.
fn kvm_pit() -> (u32, CpuSet) {
    let is_pit =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with("kvm-pit/"));
    let pid = wait_until("kvm-pit", || all_pids().into_iter().find(is_pit));
    let status = read(format!("/proc/{pid}/status"));
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    (pid, cpus(allowed.expect("a list").trim()))
}

#[test]
fn isolate_emulator_thread_is_taken_in_in_place_and_its_cpu_is_floats() {
    needs_kvm();
    on_node_undoing(unconfigure, || {
        let web = Web::start();
        let own: CpuSet = web.pinned.iter().copied().collect();
        web.sync();
        let (pit, _) = kvm_pit();
        pin(pit, web.pinned[0]).expect("virt-handler pins kvm-pit");
        configure(RULE);
        if !is_sid() {
            // Its processes would have to leave the container, where virt-handler looks for them.
            let (reason, text) = wait_until("it is refused", || refused(&web.pod));
            assert_eq!(reason, "Failed", "{text}");
            assert!(
                text.contains("isolateEmulatorThread") && text.contains("does not cope"),
                "{text}"
            );
            assert_eq!(web.manager_path(), web.pod.origin());
            assert!(!web.pod.is_in_place() && state(&web.pod).is_none());
            // The same VM without it.
            for process in container_of(web.pod.pid).keys() {
                fs::write(web.pod.origin().join("cgroup.procs"), process.to_string()).expect("moved back");
            }
            fs::write(web.pod.origin().join("cgroup.subtree_control"), "-cpuset").expect("the controller");
            fs::remove_dir(web.housekeeping()).expect("removed");
            run(&["systemctl", "reload", "steliad"]);
            web.until_whole();
        } else {
            web.until_whole();
            assert_eq!(web.pod.float(), web.housekeeping());
            // virt-handler's next looks change nothing, and it finds what it always found.
            let before = counters();
            for _ in 0..2 {
                web.sync();
                run(&["steliactl", "reconcile"]);
            }
            web.assert_whole();
            assert_eq!(counters(), before, "drift was found");
            assert_eq!(web.manager_path(), web.pod.origin());
        }
        // Making the partition moved it away, and the kernel keeps it off.
        let (_, allowed) = kvm_pit();
        assert!(allowed.is_disjoint(&own), "kvm-pit may run on {allowed}");
        assert_eq!(pin(pit, web.pinned[0]), Err(Errno::EINVAL));
        run(&["kill", "-KILL", &web.vmm.to_string()]);
        wait_until("its CPUs are given back", || state(&web.pod).is_none().then_some(()));
        wait_until("its cgroups are gone", || (!web.pod.vcpu().exists()).then_some(()));
        assert!(web.pod.exclusive().is_disjoint(&partitioned()));
        web.pod.kill();
    });
}
