//! How guests run in this node's pods, QEMU's words for the usual one, and what is asked of a runner and of a QEMU.

use std::fs;
use std::path::Path;

use serde_json::Value;
use test_vmm::recording::Process;

use super::{Pod, beside, children, json, put, run, threads_of, utf8, wait_until, words};

pub const QEMU: &str = if cfg!(target_arch = "aarch64") {
    "qemu-system-aarch64"
} else {
    "qemu-system-x86_64"
};
/// The name of its process: the kernel keeps 15 bytes.
pub const QEMU_NAME: &str = QEMU.split_at(15).0;

/// What executes a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The node's own KVM, whose device pods get as a device plugin would give it.
    Kvm,
    /// QEMU's emulation, with a thread for each vCPU.
    Tcg,
}

impl Accel {
    /// What this node has (`node run --guest`).
    pub fn of_node() -> Self {
        match std::env::var("NODE_GUEST").as_deref() {
            Ok("kvm") => Self::Kvm,
            _ => Self::Tcg,
        }
    }

    /// QEMU's words for it; on arm64, where QEMU has no built-in firmware, with a guest that waits (`tests/node/idle-arm64.S`).
    pub fn words(self) -> Vec<&'static str> {
        words(match self {
            Self::Kvm if cfg!(target_arch = "aarch64") => {
                "-machine virt,gic-version=host -kernel /job/idle-arm64.bin -accel kvm -cpu host"
            }
            Self::Tcg if cfg!(target_arch = "aarch64") => {
                "-machine virt -kernel /job/idle-arm64.bin -accel tcg,thread=multi -cpu cortex-a57"
            }
            Self::Kvm => "-accel kvm -cpu host",
            Self::Tcg => "-accel tcg,thread=multi",
        })
    }

    /// The stand-in's words for its device.
    pub fn device(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["--device", "/dev/kvm"],
            Self::Tcg => &[],
        }
    }

    /// QEMU with a small guest that never ends. By the names of its threads the tests know which are vCPUs.
    pub fn qemu(self) -> Vec<&'static str> {
        let rest = words("-m 64 -display none -nodefaults -name vm,debug-threads=on");
        [vec![QEMU], self.words(), rest].concat()
    }
}

/// These tests are about KVM: a node without it is no place for them.
pub fn needs_kvm() {
    let has_kvm = Accel::of_node() == Accel::Kvm;
    assert!(has_kvm, "this node's guests do not run on KVM (node run --guest)");
}

pub fn is_sid() -> bool {
    std::env::var("NODE_IMAGE").is_ok_and(|image| image == "sid")
}

/// A pod that runs the runner with these options and QEMU with these, not waited for.
pub fn start_on(accel: Accel, name: &str, cpus: &str, runner: &[&str], qemu: &[&str]) -> Pod {
    let runner = [&["--qmp", "/run/qmp"], runner].concat();
    Pod::start_qemu(accel, name, &["--cpus", cpus], &runner, qemu)
}

/// What a probe exec'd into the container says of the runner there: whether it is so, and why.
pub fn probe_at(pod: &Pod, what: &str, runner: &str) -> (bool, String) {
    let out = pod.try_exec(&format!("stelia-runner probe {what} {runner}"));
    (out.status.success(), utf8(&out.stdout).trim().to_owned())
}

pub fn probe(pod: &Pod, what: &str) -> (bool, String) {
    probe_at(pod, what, "--qmp /run/qmp")
}

pub fn probe_state(pod: &Pod) -> Value {
    serde_json::from_str(&probe(pod, "state").1).unwrap_or_default()
}

pub fn wait_ready(pod: &Pod) {
    wait_until(&format!("{} ready", pod.name), || probe(pod, "readiness").0);
}

/// A monitor that the runner does not use.
pub const OTHER: [&str; 2] = ["-qmp", "unix:/run/other,server=on,wait=off"];

/// QMP commands on that monitor, by a Python in the node; answers the last answer.
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
    let monitor = pod.inside("/run/other").display().to_string();
    run(&["python3", "-c", script, &monitor, commands])
}

/// One command there with these arguments, which must succeed; the whole answer.
pub fn execute(pod: &Pod, command: &str, arguments: &Value) -> Value {
    let command = serde_json::json!({"execute": command, "arguments": arguments}).to_string();
    let answer = qmp(pod, &command);
    assert!(answer.contains(r#""return""#), "{command}: {answer}");
    json(&answer)
}

/// One more vCPU of this model for a QEMU of two sockets.
pub fn plug_vcpu(pod: &Pod, model: &str) {
    let driver = format!("{model}-x86_64-cpu");
    let place = serde_json::json!({"driver": driver, "id": "c1", "socket-id": 1, "core-id": 0, "thread-id": 0});
    execute(pod, "device_add", &place);
}

/// A disk of one sector with this code, as QEMU's words for it.
pub fn boot_sector(name: &str, code: &[u8]) -> String {
    let mut sector = [0; 512];
    sector[..code.len()].copy_from_slice(code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let file = beside(name);
    put(&file, sector);
    format!("file={},format=raw,if=ide,snapshot=on", file.display())
}

/// A VMM's processes as `testing/vmm/recordings/` has them: its own, and then those that it has started. None: one of them ended meanwhile.
pub fn processes(vmm: u32) -> Option<Vec<Process>> {
    let mut others = children(vmm);
    let mut at = 0;
    while let Some(other) = others.get(at).copied() {
        others.extend(children(other));
        at += 1;
    }
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(vmm)?;
    let others = others.into_iter().map(|pid| process(pid, namespace(pid)? != own));
    let mut others = others.collect::<Option<Vec<_>>>()?;
    others.sort_unstable();
    others.insert(0, process(vmm, false)?);
    Some(others)
}

fn process(pid: u32, has_namespaces: bool) -> Option<Process> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let argv0 = String::from_utf8_lossy(command.split(|byte| *byte == 0).next()?).into_owned();
    let (main, others): (Vec<_>, Vec<_>) = threads_of(pid).into_iter().partition(|thread| thread.tid == pid);
    let mut threads: Vec<String> = others.into_iter().map(|thread| thread.name).collect();
    threads.sort_unstable();
    Some(Process {
        argv0: Path::new(&argv0).file_name()?.to_str()?.to_owned(),
        comm: main.into_iter().next()?.name,
        has_namespaces,
        threads,
    })
}
