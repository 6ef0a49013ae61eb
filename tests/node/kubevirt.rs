//! A VM as KubeVirt runs it, beside what virt-launcher and virt-handler do to it. Neither is KubeVirt: the launcher is a shell of its
//! shape; the steps are those of `HandleHousekeeping` and `managerPath` in KubeVirt's `pkg/virt-handler`, and of `GetPodCPUSet` and
//! the conversion behind it in `pkg/virt-launcher`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use stelia_cpus::CpuSet;

use crate::support::*;

const RULE: &str = "audit-interval-s = 3600\n[[adopt]]\nuse = \"kubevirt\"\ncontainers = [\"instance\"]\n";

/// What of a VM differs.
#[derive(Clone, Copy)]
struct Vm {
    vcpus: usize,
    /// `isolateEmulatorThread`: one CPU more, and the guest is created paused.
    isolate: bool,
}

impl Vm {
    fn cpus(self) -> usize {
        self.vcpus + usize::from(self.isolate)
    }

    /// `virt-launcher-monitor`, below it `virt-launcher`, below that `virtqemud` and QEMU.
    fn launched(self) -> Pod {
        let (vcpus, count) = (self.vcpus.to_string(), self.cpus().to_string());
        let held: &[&str] = if self.isolate { &["-S"] } else { &[] };
        let qemu = [&Accel::Kvm.qemu()[..], &["-smp", &vcpus], &OTHER, held]
            .concat()
            .join(" ");
        let launcher = format!("/tmp/virtqemud 100000 & {qemu} & wait");
        let monitor = format!("/tmp/virt-launcher -c '{launcher}' & wait; sleep 100000");
        let shell = format!(
            "cp /bin/sh /tmp/virt-launcher-monitor; cp /bin/sh /tmp/virt-launcher; cp /bin/sleep /tmp/virtqemud; \
             exec /tmp/virt-launcher-monitor -c \"{monitor}\""
        );
        let options = [Accel::Kvm.device(), &["--cpus", &count, "--runtime", "runc"]].concat();
        Pod::start("virt-launcher-web-x7k2p", &options, &["sh", "-c", &shell])
    }

    /// What KubeVirt's conversion plans from the pod's CPUs: one for each vCPU, and for the emulator where it has one of its own.
    fn plan(self, pod: &CpuSet) -> (Vec<u32>, Option<u32>) {
        let mut free = pod.iter();
        let pins: Vec<u32> = free.by_ref().take(self.vcpus).collect();
        let emulator = free.next().filter(|_| self.isolate);
        let found = pins.len() + usize::from(emulator.is_some());
        assert_eq!(found, self.cpus(), "not enough exclusive threads provided: {pod}");
        (pins, emulator)
    }
}

/// A VM of KubeVirt's.
struct Web {
    vm: Vm,
    pod: Pod,
    vmm: u32,
    vcpus: Vec<Thread>,
    pinned: Vec<u32>,
    /// The one that `isolateEmulatorThread` costs.
    emulator: CpuSet,
}

impl Web {
    /// Its vCPUs pinned as libvirt pins them.
    fn start(vm: Vm) -> Self {
        let pod = vm.launched();
        let (vmm, vcpus) = wait_until("the vCPU threads", || {
            let mut all = container_of(pod.pid).into_iter();
            let (vmm, threads) = all.find(|(_, threads)| threads.iter().any(is_qemus_vcpu))?;
            let vcpus: Vec<Thread> = threads.into_iter().filter(is_qemus_vcpu).collect();
            (vcpus.len() == vm.vcpus).then_some((vmm, vcpus))
        });
        let (pinned, emulator) = vm.plan(&pod.exclusive());
        let emulator = emulator.into_iter().collect();
        for (vcpu, cpu) in vcpus.iter().zip(&pinned) {
            pin(vcpu.tid, [*cpu]).expect("pinned");
        }
        Self {
            vm,
            pod,
            vmm,
            vcpus,
            pinned,
            emulator,
        }
    }

    /// At every sync virt-launcher reads the pod's CPUs, plans from them, and pins anew: nothing may fail, and the plan stays the same.
    fn synced_by_launcher(&self, when: &str) {
        let effective = self.pod.file("cpuset.cpus.effective");
        assert_eq!(cpus(&effective), self.pod.exclusive(), "{when}");
        let (pins, emulator) = self.vm.plan(&cpus(&effective));
        assert_eq!(pins, self.pinned, "{when}");
        for (vcpu, cpu) in self.vcpus.iter().zip(pins) {
            let pinned = pin(vcpu.tid, [cpu]);
            assert_eq!(pinned, Ok(()), "{when}: vCPU thread {} to {cpu}", vcpu.tid);
        }
        if let Some(cpu) = emulator {
            assert_eq!(pin(self.vmm, [cpu]), Ok(()), "{when}: the emulator to {cpu}");
        }
    }

    fn housekeeping(&self) -> PathBuf {
        self.pod.origin().join("housekeeping")
    }

    /// What virt-handler does each time it looks at a VM.
    fn sync(&self) {
        let (origin, housekeeping) = (self.pod.origin(), self.housekeeping());
        fs::create_dir_all(&housekeeping).expect("create housekeeping");
        put(housekeeping.join("cgroup.type"), "threaded");
        put(origin.join("cgroup.subtree_control"), "+cpuset");
        put(housekeeping.join("cpuset.cpus"), self.emulator.to_string());
        for thread in read(origin.join("cgroup.threads")).lines() {
            let comm = comm(thread);
            if !(comm.contains("CPU ") && comm.contains("KVM")) {
                let _ = fs::write(housekeeping.join("cgroup.threads"), thread);
            }
        }
    }

    /// The cgroup that virt-handler takes for the container's, by the launcher's process.
    fn manager_path(&self) -> PathBuf {
        let mut all = all_threads(container_of(self.pod.pid)).into_iter();
        let launcher = all.find(|thread| thread.name == "virt-launcher");
        let mut found = launcher.expect("the launcher").cgroup;
        if found.ends_with("housekeeping") {
            found.pop();
        }
        found
    }

    /// Its container is a partition, in which each vCPU has the CPU that it was pinned to, and nothing was moved.
    fn assert_whole(&self) {
        let (pod, own) = (&self.pod, self.pod.exclusive());
        for thread in container_of(pod.pid).into_values().flatten() {
            let allowed = match self.vcpus.iter().position(|vcpu| vcpu.tid == thread.tid) {
                Some(vcpu) => CpuSet::from_iter([self.pinned[vcpu]]),
                None => own.clone(),
            };
            let inside = [pod.origin(), self.housekeeping()].contains(&thread.cgroup);
            let is_right = inside && thread.allowed.is_subset(&allowed);
            assert!(is_right, "{thread:?}, not {allowed}");
        }
        assert_eq!(pod.file("cpuset.cpus.partition"), "root");
        assert!(own.is_subset(&partitioned()));
        assert!(workers().is_disjoint(&own), "unbound workers on {}", workers());
        run(&["steliactl", "verify", &pod.uid]);
    }

    fn until_adopted(&self) {
        let refused = || format!(": {:?}", refused(&self.pod));
        let isolated = || self.pod.is("isolated");
        wait_until_or("it is adopted", refused, isolated);
        self.assert_whole();
    }
}

#[test]
fn virt_launcher_reads_the_same_cpus_and_pins_as_it_wants_before_and_after_adoption() {
    on_kvm_node(|| {
        // The second has more vCPUs than the node has CPUs beside it.
        for vcpus in [2, 5] {
            let web = Web::start(Vm { vcpus, isolate: false });
            web.synced_by_launcher("before");
            configure(RULE);
            web.until_adopted();
            for _ in 0..2 {
                web.synced_by_launcher("adopted");
                reconcile();
            }
            restart("steliad");
            web.until_adopted();
            web.synced_by_launcher("after a restart");
            web.assert_whole();
            unconfigure();
            web.pod.deregister();
            web.pod.wait_released();
            web.synced_by_launcher("given back");
            // The next one has its name.
            web.pod.delete(0);
        }
    });
}

#[test]
fn with_isolate_emulator_thread_virt_handlers_cgroup_is_a_part_of_the_partition() {
    // The rule is there before the guest, which KubeVirt creates paused and resumes when it has looked at it again.
    configured_on_kvm(RULE, || {
        let web = Web::start(Vm {
            vcpus: 2,
            isolate: true,
        });
        web.sync();
        web.synced_by_launcher("paused");
        // The kernel's thread for the emulated timer of the node's only VM.
        let pit = wait_until("kvm-pit", || processes_named("kvm-pit/").first().map(|pit| pit.tid));
        pin(pit, [web.pinned[0]]).expect("virt-handler pins kvm-pit");
        // Some looks later. It would be refused if this were a partition.
        reconcile();
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(web.pod.state(), None, "its guest has not run");
        pin(pit, [web.pinned[0]]).expect("virt-handler pins kvm-pit again");
        qmp(&web.pod, r#"{"execute":"cont"}"#);
        pin(pit, [web.pinned[0]]).expect("virt-handler pins kvm-pit until it has reported the VM as running");
        web.until_adopted();
        // virt-handler's next looks change nothing, and it finds what it always found.
        let before = counters();
        for _ in 0..2 {
            web.sync();
            web.synced_by_launcher("adopted");
            reconcile();
        }
        web.assert_whole();
        assert_eq!(counters(), before, "drift was found");
        assert_eq!(web.manager_path(), web.pod.origin());
        // By the end of its process: no audit runs.
        kill("-KILL", web.vmm);
        web.pod.wait_released();
        assert_eq!(web.pod.file("cpuset.cpus.partition"), "member");
        assert!(web.pod.exclusive().is_disjoint(&partitioned()));
        web.pod.kill();
    });
}
