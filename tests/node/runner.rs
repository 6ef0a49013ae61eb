//! The runner in production: helpers, probes, the daemon away, vCPUs plugged, a QEMU that something else started.

use crate::adopt_vmm::TEST_VMM;
use crate::support::*;

#[test]
fn helpers_float_and_end_with_their_vm_and_a_probe_runs_on_shared_cpus() {
    on_node(|| {
        let helper = "name=dhcp,command=dnsmasq --keep-in-foreground --port=0 --pid-file= --user=root --log-facility=-";
        let pod = start_on(Accel::of_node(), "helped", "2", &["--helper", helper], &["-smp", "2"]).running();
        let threads = assert_isolated(&pod, 2);
        threads.one("dnsmasq");
        wait_ready(&pod);
        assert_eq!(probe(&pod, "readiness").1, "isolated");
        assert_eq!(probe(&pod, "liveness"), (true, "alive, up".into()));
        let allowed = pod.exec("grep Cpus_allowed_list /proc/self/status");
        let allowed = cpus(&field(&allowed, "Cpus_allowed_list:"));
        assert!(allowed.is_disjoint(&pod.exclusive()), "{allowed}");
        // Killed, it is there again.
        run("pkill -KILL -x dnsmasq");
        wait_until("a new one, in float", || {
            let threads = pod.threads();
            threads
                .named("dnsmasq")
                .first()
                .is_some_and(|found| found.cgroup == pod.float())
        });
        // preStop
        pod.try_exec("stelia-runner stop --qmp /run/qmp");
        wait_until("the container ended", || thread(pod.pid).is_none());
    });
}

#[test]
fn without_the_daemon_a_vm_that_may_runs_degraded_and_is_isolated_when_it_comes() {
    on_node(|| {
        stopped_but_for(None);
        let options = ["--require-isolation=no", "--register-timeout=2"];
        let pod = start_on(Accel::of_node(), "degraded", "2", &options, &["-smp", "2"]).running();
        let (ready, text) = probe(&pod, "readiness");
        start_all();
        assert!(ready && text.starts_with("degraded"), "{text}");
        wait_until("isolated", || is_isolated(&pod, 2));
        assert_isolated(&pod, 2);
        wait_until("said", || probe(&pod, "readiness").1 == "isolated");
    });
}

#[test]
fn a_runner_finds_a_restarted_daemon_and_says_when_its_instance_is_deregistered() {
    on_node(|| {
        let pod = Pod::vm("followed", 2);
        let before = assert_isolated(&pod, 2);
        restart("steliad");
        wait_until("the daemon is back", || pod.logs().contains("the daemon is back"));
        assert_eq!(assert_isolated(&pod, 2), before);
        wait_ready(&pod);
        pod.deregister();
        wait_until("not ready", || !probe(&pod, "readiness").0);
        // It was leaving for a moment.
        wait_until("said", || probe(&pod, "readiness").1.contains("deregistered"));
        assert!(probe(&pod, "liveness").0);
        assert_eq!(pod.state(), None);
    });
}

/// A guest of one boot sector that ejects CPU 1 whenever QEMU asks for it, as an operating system's ACPI would
/// (docs/specs/acpi_cpu_hotplug of QEMU; the registers of the machine `pc` are at 0xaf00).
fn ejecting_guest() -> String {
    #[rustfmt::skip]
    const CODE: [u8; 35] = [
        0x66, 0x31, 0xc0,                         // xor eax, eax
        0xba, 0x00, 0xaf,                         // mov dx, 0xaf00
        0x66, 0xef,                               // out dx, eax      the present interface, not the legacy one
        0xba, 0x00, 0xaf,                         // again: mov dx, 0xaf00
        0x66, 0xb8, 0x01, 0x00, 0x00, 0x00,       // mov eax, 1
        0x66, 0xef,                               // out dx, eax      CPU selector: 1
        0x83, 0xc2, 0x04,                         // add dx, 4
        0xec,                                     // in al, dx        its status
        0xa8, 0x04,                               // test al, 4       a request to remove it?
        0x74, 0xec,                               // jz again
        0xb0, 0x08,                               // mov al, 8
        0xee,                                     // out dx, al       eject
        0xeb, 0xe7,                               // jmp again
        0x90, 0x90, 0x90,
    ];
    boot_sector("eject.img", &CODE)
}

#[test]
fn a_plugged_vcpu_is_pinned_until_it_is_unplugged_and_a_reboot_changes_nothing() {
    on_node(|| {
        let disk = ejecting_guest();
        let machine = ["-machine", "pc", "-smp", "1,sockets=2,maxcpus=2", "-drive", &disk];
        let qemu = [&machine, &OTHER[..]].concat();
        // Emulated: a vCPU of this very model is plugged.
        let pod = start_on(Accel::Tcg, "grown", "2", &[], &qemu).running();
        assert_isolated(&pod, 1);
        plug_vcpu(&pod, "qemu64");
        wait_until("the second vCPU is pinned", || is_isolated(&pod, 2));
        let before = assert_isolated(&pod, 2);
        qmp(&pod, r#"{"execute":"system_reset"}"#);
        wait_until("the reset is seen", || pod.logs().contains("QEMU: RESET"));
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
        // The guest must have booted again to hear of it.
        wait_until("the second vCPU is gone", || {
            qmp(&pod, r#"{"execute":"device_del","arguments":{"id":"c1"}}"#);
            is_isolated(&pod, 1)
        });
        let first = assert_isolated(&pod, 1).vcpus;
        assert_eq!(first[..], before.vcpus[..1]);
        wait_until("the runner handed over the one that is left", || {
            let said = json(&probe(&pod, "state").1);
            said["vcpus"].as_array().expect("vcpus").len() == 1
        });
    });
}

#[test]
fn a_qemu_without_a_monitor_for_us_is_attached_by_its_threads_names() {
    on_node(|| {
        let accel = Accel::of_node();
        let qemu = accel.qemu().join(" ");
        let script = format!("{qemu} -smp 2 & exec stelia-runner attach --state-dir /run");
        let options = [accel.device(), &["--cpus", "2"]].concat();
        let pod = Pod::start("attached", &options, &["sh", "-c", &script]);
        wait_until("isolated", || is_isolated(&pod, 2));
        pod.wait_settled();
        let threads = assert_isolated(&pod, 2);
        assert_eq!(threads.vcpus.len(), 2);
        let said = json(&probe_at(&pod, "state", "--state-dir /run").1);
        assert_eq!(
            (&said["paused-start"], &said["isolation"]),
            (&false.into(), &"isolated".into())
        );
    });
}

#[test]
fn a_guest_that_is_shut_down_while_its_vmm_stays_is_not_ready_until_it_boots_again() {
    needs_kvm();
    on_node(|| {
        let script =
            format!("{TEST_VMM} --like cloud-hypervisor --vcpus 2 & exec stelia-runner attach --state-dir /run");
        let options = [Accel::Kvm.device(), &["--cpus", "2"]].concat();
        let pod = Pod::start("shut-down", &options, &["sh", "-c", &script]);
        let asked = |what: &str| probe_at(&pod, what, "--state-dir /run");
        let vcpus = || -> Vec<Thread> { pod.threads().named("vcpu").into_iter().cloned().collect() };
        let seated = || {
            let vcpus = vcpus();
            let alone = |thread: &Thread| thread.cgroup == pod.vcpu() && thread.allowed.len() == 1;
            (vcpus.len() == 2 && vcpus.iter().all(alone)).then_some(vcpus)
        };
        let before = wait_until("both vCPUs have CPUs of their own", seated);
        wait_until("ready", || asked("readiness") == (true, "isolated".to_owned()));
        assert!(pod.logs().contains("Cloud Hypervisor is process"), "{}", pod.logs());
        let signal = |signal: &str| run(&["pkill", signal, "-x", "cloud-hyperviso"]);
        signal("-USR1");
        wait_until("its vCPUs have ended", || vcpus().is_empty());
        wait_until("not ready", || !asked("readiness").0);
        let told = asked("readiness").1;
        assert!(told.starts_with("the guest is shut down"), "{told}");
        let said = json(&asked("state").1);
        assert_eq!(said["guest"], "shutdown");
        let is_alive = asked("liveness").0;
        assert!(is_alive && !pod.logs().contains("debug-threads"), "{}", pod.logs());
        signal("-USR2");
        wait_until("ready again", || asked("readiness").0);
        let after = wait_until("its new vCPUs have CPUs of their own", seated);
        assert!(after.iter().all(|new| before.iter().all(|old| old.tid != new.tid)));
    });
}

#[test]
fn an_io_thread_gets_the_cpu_that_the_vcpus_leave_over() {
    on_node(|| {
        let qemu = ["-smp", "2", "-object", "iothread,id=disk"];
        let pod = start_on(Accel::of_node(), "io", "3", &["--iothread-cpus=yes"], &qemu).running();
        let all = pod.threads();
        let io = all.one("IO disk");
        let used = assert_seated(&pod, &[&all.vcpus[..], std::slice::from_ref(io)].concat());
        assert_eq!(used, pod.exclusive());
        pod.assert_is("isolated");
        // With a CPU less it floats again and the vCPUs keep theirs; with the CPU back it has one.
        let seated: Vec<String> = all.vcpus.iter().map(|vcpu| vcpu.allowed.to_string()).collect();
        let fewer = pod.resize("--cpuset", &seated.join(","));
        wait_until("isolated on two CPUs", || is_isolated(&fewer, 2));
        let now = assert_isolated(&fewer, 2);
        assert_eq!(now.vcpus, all.vcpus);
        pod.resize("--cpuset", &used.to_string());
        wait_until("the I/O thread has its CPU again", || {
            let io = thread(io.tid)?;
            (io.cgroup == pod.vcpu() && io.allowed.len() == 1).then_some(())
        });
        assert_eq!(pod.threads().vcpus, all.vcpus);
    });
}

#[test]
fn below_another_init_it_works_the_same() {
    on_node(|| {
        let accel = Accel::of_node();
        let runner = words("tini -- stelia-runner run --qmp /run/qmp --grace 1 --");
        let command = [runner, accel.qemu(), words("-smp 2")];
        let options = [accel.device(), &["--cpus", "2"]].concat();
        let pod = Pod::start("below", &options, &command.concat()).running();
        let threads = assert_isolated(&pod, 2);
        assert_eq!(threads.one("tini").tid, pod.pid);
        // An orphan is tini's to reap, a signal is tini's to pass on, the exit code is the runner's.
        kill("-TERM", pod.pid);
        assert_eq!(pod.wait(), "0");
        assert_eq!(pod.state(), None);
        assert!(!pod.scope().exists());
    });
}
