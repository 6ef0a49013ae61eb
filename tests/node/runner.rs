//! The runner in production: helpers, probes, a guest that is shut down, another init.

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
            let found = threads.named("dnsmasq");
            found.first().is_some_and(|found| found.cgroup == pod.float())
        });
        // preStop
        pod.try_exec("stelia-runner stop --qmp /run/qmp");
        wait_until("the container ended", || thread(pod.pid).is_none());
    });
}

#[test]
fn a_guest_that_is_shut_down_while_its_vmm_stays_is_not_ready_until_it_boots_again() {
    on_kvm_node(|| {
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
