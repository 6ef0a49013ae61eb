//! The runner in production: helpers, probes, the daemon away, vCPUs plugged, a QEMU that something else started.

use serde_json::Value;

use crate::adopt_vmm::TEST_VMM;
use crate::kvm::needs_kvm;
use crate::support::guest::Accel;
use crate::support::host::{output, run, thread, wait_until};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::{assert_isolated, is_isolated, near_pool, state};

/// A pod that runs the runner with these options and QEMU with these.
pub fn start(name: &str, cpus: &str, runner: &[&str], qemu: &[&str]) -> Pod {
    start_on(Accel::of_node(), name, cpus, runner, qemu)
}

/// The same with a guest that runs so.
pub fn start_on(accel: Accel, name: &str, cpus: &str, runner: &[&str], qemu: &[&str]) -> Pod {
    let runner = [&["--qmp", "/run/qmp"], runner].concat();
    Pod::start_qemu(accel, name, &["--cpus", cpus], &runner, qemu)
}

/// What a probe exec'd into the container says: whether it is so, and why.
pub fn probe(pod: &Pod, what: &str) -> (bool, String) {
    let exec = ["kubelet-standin", "pod", "exec", &pod.name, "--"];
    let out = output(&[&exec[..], &["stelia-runner", "probe", what, "--qmp", "/run/qmp"]].concat());
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    (out.status.success(), text)
}

/// The runner's state.
pub fn probe_state(pod: &Pod) -> Value {
    serde_json::from_str(&probe(pod, "state").1).unwrap_or_default()
}

pub fn wait_ready(pod: &Pod) {
    wait_until(&format!("{} ready", pod.name), || {
        probe(pod, "readiness").0.then_some(())
    });
}

/// QMP commands on a monitor that the runner does not use, by a Python in the node; answers the last answer.
pub fn qmp(pod: &Pod, commands: &str) -> String {
    let script = r#"
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
f = s.makefile("rw")
f.readline()
for line in ['{"execute":"qmp_capabilities"}'] + sys.argv[2].splitlines():
    f.write(line + "\n")
    f.flush()
    while True:
        answer = f.readline()
        if '"return"' in answer or '"error"' in answer:
            break
print(answer)
"#;
    let socket = format!("/proc/{}/root/run/other", pod.pid);
    run(&["python3", "-c", script, &socket, commands])
}

/// That monitor.
pub const OTHER: [&str; 2] = ["-qmp", "unix:/run/other,server=on,wait=off"];

#[test]
fn helpers_float_and_end_with_their_vm_and_a_probe_runs_on_shared_cpus() {
    on_node(|| {
        let helper = "name=dhcp,command=dnsmasq --keep-in-foreground --port=0 --pid-file= --user=root --log-facility=-";
        let pod = start("helped", "2", &["--helper", helper], &["-smp", "2"]);
        pod.wait_running();
        let threads = assert_isolated(&pod, 2);
        assert!(
            threads.others.iter().any(|thread| thread.name == "dnsmasq"),
            "{threads:#?}"
        );
        wait_ready(&pod);
        assert_eq!(probe(&pod, "readiness").1, "isolated");
        assert_eq!(probe(&pod, "liveness"), (true, "alive, up".into()));
        let exec = [
            "kubelet-standin",
            "pod",
            "exec",
            &pod.name,
            "--",
            "grep",
            "Cpus_allowed_list",
            "/proc/self/status",
        ];
        let allowed = run(&exec);
        let allowed = crate::support::host::cpus(allowed.rsplit(char::is_whitespace).next().expect("a list"));
        assert!(allowed.is_disjoint(&pod.exclusive()), "{allowed}");
        println!("  a probe may run on {allowed}, float is {}", near_pool(&pod));
        // Killed, it is there again.
        run(&["pkill", "-KILL", "-x", "dnsmasq"]);
        wait_until("a new one, in float", || {
            let threads = pod.threads();
            let found = threads.others.iter().find(|thread| thread.name == "dnsmasq")?;
            (found.cgroup == pod.float()).then_some(())
        });
        // preStop
        let stop = [
            "kubelet-standin",
            "pod",
            "exec",
            &pod.name,
            "--",
            "stelia-runner",
            "stop",
            "--qmp",
            "/run/qmp",
        ];
        output(&stop);
        wait_until("the container ended", || thread(pod.pid).is_none().then_some(()));
    });
}

#[test]
fn without_the_daemon_a_vm_that_may_runs_degraded_and_is_isolated_when_it_comes() {
    on_node(|| {
        let units = ["steliad-kubelet.path", "steliad-runner.socket", "steliad.service"];
        run(&[&["systemctl", "stop"], &units[..]].concat());
        let options = ["--require-isolation=no", "--register-timeout=2"];
        let pod = start("degraded", "2", &options, &["-smp", "2"]);
        pod.wait_running();
        let (ready, text) = probe(&pod, "readiness");
        run(&[&["systemctl", "start"], &units[..]].concat());
        assert!(ready && text.starts_with("degraded"), "{text}");
        wait_until("isolated", || is_isolated(&pod, 2).then_some(()));
        assert_isolated(&pod, 2);
        wait_until("said", || (probe(&pod, "readiness").1 == "isolated").then_some(()));
    });
}

#[test]
fn a_runner_finds_a_restarted_daemon_and_says_when_its_instance_is_deregistered() {
    on_node(|| {
        let pod = Pod::vm("followed", 2);
        let before = assert_isolated(&pod, 2);
        run(&["systemctl", "restart", "steliad"]);
        wait_until("the daemon is back", || {
            pod.logs().contains("the daemon is back").then_some(())
        });
        assert_eq!(assert_isolated(&pod, 2), before);
        wait_ready(&pod);
        run(&["steliactl", "deregister", &pod.uid]);
        wait_until("not ready", || (!probe(&pod, "readiness").0).then_some(()));
        // It was leaving for a moment.
        wait_until("said", || {
            probe(&pod, "readiness").1.contains("deregistered").then_some(())
        });
        assert!(probe(&pod, "liveness").0);
        assert_eq!(state(&pod), None);
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

/// A disk of one sector with this code, as QEMU's words for it.
pub fn boot_sector(name: &str, code: &[u8]) -> String {
    let mut sector = [0; 512];
    sector[..code.len()].copy_from_slice(code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let file = std::env::current_exe().expect("own path").with_file_name(name);
    std::fs::write(&file, sector).expect(name);
    format!("file={},format=raw,if=ide,snapshot=on", file.display())
}

#[test]
fn a_plugged_vcpu_is_pinned_until_it_is_unplugged_and_a_reboot_changes_nothing() {
    on_node(|| {
        let disk = ejecting_guest();
        let machine = ["-machine", "pc", "-smp", "1,sockets=2,maxcpus=2", "-drive", &disk];
        let qemu = [&machine, &OTHER[..]].concat();
        // Emulated: a vCPU of this very model is plugged.
        let pod = start_on(Accel::Tcg, "grown", "2", &[], &qemu);
        pod.wait_running();
        assert_isolated(&pod, 1);
        let plug = r#"{"execute":"device_add","arguments":{"driver":"qemu64-x86_64-cpu","id":"c1","socket-id":1,"core-id":0,"thread-id":0}}"#;
        let answer = qmp(&pod, plug);
        assert!(answer.contains("return"), "{answer}");
        wait_until("the second vCPU is pinned", || is_isolated(&pod, 2).then_some(()));
        let before = assert_isolated(&pod, 2);
        qmp(&pod, r#"{"execute":"system_reset"}"#);
        wait_until("the reset is seen", || pod.logs().contains("QEMU: RESET").then_some(()));
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
        // The guest must have booted again to hear of it.
        wait_until("the second vCPU is gone", || {
            qmp(&pod, r#"{"execute":"device_del","arguments":{"id":"c1"}}"#);
            is_isolated(&pod, 1).then_some(())
        });
        let first = assert_isolated(&pod, 1).vcpus;
        assert_eq!(first[..], before.vcpus[..1]);
        wait_until("the runner handed over the one that is left", || {
            let said: Value = serde_json::from_str(&probe(&pod, "state").1).expect("the state");
            (said["vcpus"].as_array().expect("vcpus").len() == 1).then_some(())
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
        wait_until("isolated", || is_isolated(&pod, 2).then_some(()));
        pod.wait_settled();
        let threads = assert_isolated(&pod, 2);
        assert_eq!(threads.vcpus.len(), 2);
        let exec = ["kubelet-standin", "pod", "exec", &pod.name, "--"];
        let text = run(&[&exec[..], &["stelia-runner", "probe", "state", "--state-dir", "/run"]].concat());
        let said: Value = serde_json::from_str(&text).expect("the state");
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
        let asked = |what: &str| {
            let exec = ["kubelet-standin", "pod", "exec", &pod.name, "--"];
            let probe = ["stelia-runner", "probe", what, "--state-dir", "/run"];
            let out = output(&[&exec[..], &probe].concat());
            (
                out.status.success(),
                String::from_utf8_lossy(&out.stdout).trim().to_owned(),
            )
        };
        let vcpus = || -> Vec<_> {
            let threads = pod.threads().others.into_iter();
            threads.filter(|thread| thread.name.starts_with("vcpu")).collect()
        };
        let seated = || {
            let vcpus = vcpus();
            let alone =
                |thread: &crate::support::host::Thread| thread.cgroup == pod.vcpu() && thread.allowed.len() == 1;
            (vcpus.len() == 2 && vcpus.iter().all(alone)).then_some(vcpus)
        };
        let before = wait_until("both vCPUs have CPUs of their own", seated);
        wait_until("ready", || {
            (asked("readiness") == (true, "isolated".to_owned())).then_some(())
        });
        assert!(pod.logs().contains("Cloud Hypervisor is process"), "{}", pod.logs());
        let signal = |signal: &str| run(&["pkill", signal, "-x", "cloud-hyperviso"]);
        signal("-USR1");
        wait_until("its vCPUs have ended", || vcpus().is_empty().then_some(()));
        wait_until("not ready", || (!asked("readiness").0).then_some(()));
        assert!(
            asked("readiness").1.starts_with("the guest is shut down"),
            "{:?}",
            asked("readiness")
        );
        let said: Value = serde_json::from_str(&asked("state").1).expect("the state");
        assert_eq!(said["guest"], "shutdown");
        assert!(
            asked("liveness").0 && !pod.logs().contains("debug-threads"),
            "{}",
            pod.logs()
        );
        signal("-USR2");
        wait_until("ready again", || asked("readiness").0.then_some(()));
        let after = wait_until("its new vCPUs have CPUs of their own", seated);
        assert!(after.iter().all(|new| before.iter().all(|old| old.tid != new.tid)));
    });
}

#[test]
fn an_io_thread_gets_the_cpu_that_the_vcpus_leave_over() {
    on_node(|| {
        let qemu = ["-smp", "2", "-object", "iothread,id=disk"];
        let pod = start("io", "3", &["--iothread-cpus=yes"], &qemu);
        pod.wait_running();
        let all = pod.threads();
        let io = all
            .others
            .iter()
            .find(|thread| thread.name == "IO disk")
            .expect("the I/O thread");
        assert_eq!((&io.cgroup, io.allowed.len()), (&pod.vcpu(), 1), "{io:?}");
        let mut used = io.allowed.clone();
        for vcpu in &all.vcpus {
            assert_eq!((&vcpu.cgroup, vcpu.allowed.len()), (&pod.vcpu(), 1), "{vcpu:?}");
            used = used.union(&vcpu.allowed);
        }
        assert_eq!(used, pod.exclusive());
        assert_eq!(state(&pod).as_deref(), Some("isolated"));
        // With a CPU less it floats again and the vCPUs keep theirs; with the CPU back it has one.
        let seated: Vec<String> = all.vcpus.iter().map(|vcpu| vcpu.allowed.to_string()).collect();
        let resize = |cpus: &str| run(&["kubelet-standin", "pod", "resize", &pod.name, "--cpuset", cpus]);
        resize(&seated.join(","));
        let fewer = Pod::show(&pod.name);
        wait_until("isolated on two CPUs", || is_isolated(&fewer, 2).then_some(()));
        let now = assert_isolated(&fewer, 2);
        assert_eq!(now.vcpus, all.vcpus);
        resize(&used.to_string());
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
        let command = [
            &[
                "tini",
                "--",
                "stelia-runner",
                "run",
                "--qmp",
                "/run/qmp",
                "--grace",
                "1",
                "--",
            ],
            &accel.qemu()[..],
            &["-smp", "2"],
        ];
        let options = [accel.device(), &["--cpus", "2"]].concat();
        let pod = Pod::start("below", &options, &command.concat());
        pod.wait_running();
        let threads = assert_isolated(&pod, 2);
        let init = threads
            .others
            .iter()
            .find(|thread| thread.tid == pod.pid)
            .expect("PID 1");
        assert_eq!(init.name, "tini");
        // An orphan is tini's to reap, a signal is tini's to pass on, the exit code is the runner's.
        run(&["kill", "-TERM", &pod.pid.to_string()]);
        assert_eq!(run(&["kubelet-standin", "pod", "wait", &pod.name]), "0");
        assert_eq!(state(&pod), None);
        assert!(!pod.scope().exists());
    });
}
