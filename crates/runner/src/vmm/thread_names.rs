//! Threads by the names that VMMs give them: QEMU with `-name …,debug-threads=on`, Cloud Hypervisor and Firecracker always.
//! They are the only source for a VMM whose control channel another program holds (a QEMU of libvirt).
//!
//! The names of vCPU threads stand also in the ready-made rules of adoption (`crates/settings/src/adopt/ready_made.rs`) and in
//! `testing/vmm/src/shape.rs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Change, PowerDown, Quit, Release, SHUT_DOWN, Threads, Vmm, VmmKind};
use crate::error::Error;
use crate::qmp::{Iothread, Vcpu};

/// No event reports a new thread, so the names are read this often.
const THREAD_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// For QEMU alone: the others name theirs always.
const HINT: &str = "QEMU names them with -name …,debug-threads=on";
/// The error text for a process without vCPU threads.
const NONE: &str = "no thread is named as a vCPU";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Role {
    Vcpu(u32),
    Iothread(String),
    /// One thread emulates all vCPUs.
    AllVcpus,
    Other,
}

/// QEMU's names (accel/*, iothread.c), which the kernel cuts after 15 bytes: `CPU 3/KVM`, `CPU 3/TCG`, `ALL CPUs/TCG`,
/// `IO iothread0`. Cloud Hypervisor's (vmm/src/cpu.rs): `vcpu3`. Firecracker's (src/vmm/src/vstate/vcpu.rs): `fc_vcpu 3`. All
/// others, such as multifd's, stay on the shared CPUs.
fn role(name: &str) -> Role {
    if name.starts_with("ALL CPUs/") {
        return Role::AllVcpus;
    }
    if let Some(id) = name.strip_prefix("IO ") {
        return Role::Iothread(id.to_owned());
    }
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let of_qemu = || {
        let (index, accelerator) = name.strip_prefix("CPU ")?.split_once('/')?;
        number(index).filter(|_| matches!(accelerator, "KVM" | "TCG" | "DUMMY"))
    };
    let of_others = || number(name.strip_prefix("vcpu").or_else(|| name.strip_prefix("fc_vcpu "))?);
    of_qemu().or_else(of_others).map_or(Role::Other, Role::Vcpu)
}

/// The VM's threads, from (thread id, name) of all threads.
fn sort(names: &[(i32, String)]) -> Result<Threads, Error> {
    let mut vcpus: BTreeMap<u32, i32> = BTreeMap::new();
    let mut iothreads = Vec::new();
    for (thread_id, name) in names {
        match role(name) {
            Role::Vcpu(index) => {
                if let Some(other) = vcpus.insert(index, *thread_id) {
                    let text = format!("threads {other} and {thread_id} are both named {name:?}");
                    return Err(Error::ThreadNames(text));
                }
            }
            Role::Iothread(id) => iothreads.push(Iothread {
                id,
                thread_id: *thread_id,
            }),
            Role::AllVcpus => {
                let text = "one thread emulates all vCPUs (-accel tcg,thread=single): it cannot be isolated";
                return Err(Error::ThreadNames(text.into()));
            }
            Role::Other => {}
        }
    }
    if vcpus.is_empty() {
        return Err(Error::ThreadNames(NONE.into()));
    }
    let vcpus = vcpus.into_iter().map(|(cpu_index, thread_id)| Vcpu {
        cpu_index,
        thread_id,
        props: BTreeMap::new(),
    });
    Ok(Threads {
        vcpus: vcpus.collect(),
        iothreads,
        may_grow: false,
    })
}

#[derive(Debug)]
pub(crate) struct ThreadNames {
    proc: PathBuf,
    pid: i32,
    /// `None` for a VMM other than these.
    kind: Option<VmmKind>,
    /// The result of the last read, to notice a change; `None` if no vCPU threads were identified.
    last: Option<Threads>,
    /// Whether it has had vCPU threads.
    booted: bool,
    /// `THREAD_POLL_INTERVAL`, except in tests.
    poll_interval: Duration,
}

impl ThreadNames {
    pub(crate) fn new(proc: &Path, pid: i32) -> ThreadNames {
        ThreadNames {
            proc: proc.to_owned(),
            pid,
            kind: kind(proc, pid),
            last: None,
            booted: false,
            poll_interval: THREAD_POLL_INTERVAL,
        }
    }
}

impl Vmm for ThreadNames {
    fn name(&self) -> &'static str {
        self.kind.map_or("the VMM", VmmKind::name)
    }

    async fn threads(&mut self) -> Result<Threads, Error> {
        let found = sort(&names(&self.proc, self.pid)?);
        self.last = found.as_ref().ok().cloned();
        self.booted |= found.is_ok();
        match found {
            Err(Error::ThreadNames(text)) if text == NONE && self.kind.is_none_or(|kind| kind == VmmKind::Qemu) => {
                Err(Error::ThreadNames(format!("{text}: {HINT}")))
            }
            found => found,
        }
    }

    fn reports_every_change(&self) -> bool {
        true
    }

    async fn change(&mut self) -> Result<Change, Error> {
        loop {
            tokio::time::sleep(self.poll_interval).await;
            let now = sort(&names(&self.proc, self.pid)?).ok();
            if self.last != now {
                return Ok(Change::Threads);
            }
        }
    }

    async fn run_state(&mut self) -> Result<String, Error> {
        let names = names(&self.proc, self.pid)?;
        let has_vcpus = names.iter().any(|(_, name)| matches!(role(name), Role::Vcpu(_)));
        // Cloud Hypervisor ends the threads of a guest that is shut down, and stays.
        let state = if self.booted && !has_vcpus {
            SHUT_DOWN
        } else {
            "unknown"
        };
        Ok(state.into())
    }

    async fn release(&mut self, _how: &Release) -> Result<(), Error> {
        Ok(())
    }

    async fn power_down(&mut self) -> Result<PowerDown, Error> {
        Ok(PowerDown::BySignal)
    }

    async fn quit(&mut self) -> Result<Quit, Error> {
        Ok(Quit::BySignal)
    }
}

/// The vCPU threads of a process, by ascending index and without properties.
pub(super) fn vcpus(proc: &Path, pid: i32) -> Result<Vec<Vcpu>, Error> {
    Ok(sort(&names(proc, pid)?)?.vcpus)
}

/// Which VMM a process is: by its name, else by those of its vCPU threads.
fn kind(proc: &Path, pid: i32) -> Option<VmmKind> {
    let names = names(proc, pid).ok()?;
    let process = names.iter().find(|(thread, _)| *thread == pid);
    let by_process = process.and_then(|(_, name)| VmmKind::of_program(name.as_ref()));
    let by_vcpu = |name: &str| match (role(name), name) {
        (Role::Vcpu(_), name) if name.starts_with("CPU ") => Some(VmmKind::Qemu),
        (Role::Vcpu(_), name) if name.starts_with("fc_vcpu ") => Some(VmmKind::Firecracker),
        (Role::Vcpu(_), _) => Some(VmmKind::CloudHypervisor),
        _ => None,
    };
    by_process.or_else(|| names.iter().find_map(|(_, name)| by_vcpu(name)))
}

/// Number and name of every thread. A thread that ends meanwhile is left out.
fn names(proc: &Path, pid: i32) -> Result<Vec<(i32, String)>, Error> {
    let directory = proc.join(pid.to_string()).join("task");
    let entries = std::fs::read_dir(&directory).map_err(Error::path("read", &directory))?;
    let name = |entry: std::fs::DirEntry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read(entry.path().join("comm")).ok()?;
        Some((thread, String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned()))
    };
    let mut found: Vec<_> = entries.flatten().filter_map(name).collect();
    found.sort_unstable();
    Ok(found)
}

/// The only process with threads that are named as vCPUs. In a container `/proc` shows that container's processes
/// alone.
pub(crate) fn find_vm(proc: &Path) -> Result<i32, Error> {
    let entries = std::fs::read_dir(proc).map_err(Error::path("read", proc))?;
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<i32> = pids
        .filter(|pid| names(proc, *pid).is_ok_and(|names| sort(&names).is_ok()))
        .collect();
    found.sort_unstable();
    match found[..] {
        [pid] => Ok(pid),
        [] => Err(Error::ThreadNames(format!(
            "no process has threads named as vCPUs: {HINT}"
        ))),
        _ => Err(Error::ThreadNames(format!(
            "processes {found:?} all have threads named as vCPUs: pick one with --pid"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("CPU 0/KVM", Role::Vcpu(0))]
    #[case("CPU 12/TCG", Role::Vcpu(12))]
    #[case("CPU 1000/KVM", Role::Vcpu(1000))]
    #[case("ALL CPUs/TCG", Role::AllVcpus)]
    #[case("IO iothread0", Role::Iothread("iothread0".into()))]
    #[case("multifdrecv_0", Role::Other)]
    #[case("qemu-system-x86", Role::Other)]
    #[case("qemu-system-aar", Role::Other)]
    #[case("CPU 0", Role::Other)]
    #[case("CPU /KVM", Role::Other)]
    #[case("CPU +1/KVM", Role::Other)]
    #[case("CPU 1/KVMX", Role::Other)]
    #[case("CPU 99999999999/KVM", Role::Other)]
    #[case("vcpu0", Role::Vcpu(0))]
    #[case("vcpu254", Role::Vcpu(254))]
    #[case("vcpu", Role::Other)]
    #[case("vcpu 1", Role::Other)]
    #[case("vcpu1x", Role::Other)]
    #[case("vcpu99999999999", Role::Other)]
    #[case("fc_vcpu 3", Role::Vcpu(3))]
    #[case("fc_vcpu3", Role::Other)]
    #[case("fc_vcpu ", Role::Other)]
    #[case("fc_api", Role::Other)]
    #[case("_disk0_q0", Role::Other)]
    #[case("", Role::Other)]
    fn names_are_roles(#[case] name: &str, #[case] expected: Role) {
        assert_eq!(role(name), expected);
    }

    /// (process, thread, name)
    fn proc(threads: &[(i32, i32, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (pid, thread, name) in threads {
            let path = dir.path().join(format!("{pid}/task/{thread}"));
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("comm"), format!("{name}\n")).unwrap();
        }
        std::fs::create_dir(dir.path().join("sys")).unwrap();
        dir
    }

    #[tokio::test]
    async fn the_vm_is_found_and_sorted() {
        let proc = proc(&[
            (1, 1, "libvirtd"),
            (40, 40, "qemu-system-x86"),
            (40, 43, "CPU 1/KVM"),
            (40, 42, "CPU 0/KVM"),
            (40, 44, "IO disk"),
            (40, 45, "multifdrecv_0"),
        ]);
        assert_eq!(find_vm(proc.path()).unwrap(), 40);
        let found = ThreadNames::new(proc.path(), 40).threads().await.unwrap();
        let vcpus: Vec<_> = found
            .vcpus
            .iter()
            .map(|vcpu| (vcpu.cpu_index, vcpu.thread_id))
            .collect();
        assert_eq!(vcpus, [(0, 42), (1, 43)]);
        assert_eq!(
            (found.iothreads[0].id.as_str(), found.iothreads[0].thread_id),
            ("disk", 44)
        );
    }

    fn remove(proc: &tempfile::TempDir, thread: &str) {
        std::fs::remove_dir_all(proc.path().join("40/task").join(thread)).unwrap();
    }

    #[tokio::test]
    async fn a_guest_whose_vcpu_threads_have_ended_was_shut_down_and_is_found_again_when_it_boots() {
        let threads = [(40, 40, "cloud-hyperviso"), (40, 42, "vcpu0")];
        let proc = proc(&threads);
        let mut vmm = ThreadNames::new(proc.path(), 40);
        vmm.poll_interval = Duration::from_millis(1);
        assert_eq!(
            (vmm.name(), vmm.run_state().await.unwrap().as_str()),
            ("Cloud Hypervisor", "unknown")
        );
        vmm.threads().await.unwrap();
        remove(&proc, "42");
        assert_eq!(vmm.change().await.unwrap(), Change::Threads);
        let error = vmm.threads().await.unwrap_err().to_string();
        assert!(error.ends_with("no thread is named as a vCPU"), "{error}");
        assert_eq!(vmm.run_state().await.unwrap(), SHUT_DOWN);
        let path = proc.path().join("40/task/43");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("comm"), "vcpu0\n").unwrap();
        assert_eq!(vmm.change().await.unwrap(), Change::Threads);
        assert_eq!(vmm.threads().await.unwrap().vcpus[0].thread_id, 43);
        assert_eq!(vmm.run_state().await.unwrap(), "unknown");
    }

    #[rstest]
    #[case(&[(40, "qemu-system-x86")], "QEMU", true)]
    #[case(&[(40, "CPU 0/KVM")], "QEMU", true)]
    #[case(&[(40, "firecracker"), (41, "fc_api")], "Firecracker", false)]
    #[case(&[(40, "sandbox"), (41, "fc_vcpu 0")], "Firecracker", false)]
    #[case(&[(40, "sandbox"), (41, "vcpu0")], "Cloud Hypervisor", false)]
    #[case(&[(40, "sandbox")], "the VMM", true)]
    #[tokio::test]
    async fn the_vmm_has_its_own_name_and_only_qemu_a_hint_for_its_command_line(
        #[case] threads: &[(i32, &str)],
        #[case] name: &str,
        #[case] hint: bool,
    ) {
        let threads: Vec<_> = threads.iter().map(|(thread, name)| (40, *thread, *name)).collect();
        let proc = proc(&threads);
        let mut vmm = ThreadNames::new(proc.path(), 40);
        assert_eq!(vmm.name(), name);
        for (_, thread, name) in threads {
            let path = proc.path().join(format!("40/task/{thread}"));
            if !matches!(role(name), Role::Other) {
                std::fs::remove_dir_all(path).unwrap();
            }
        }
        let error = vmm.threads().await.unwrap_err().to_string();
        assert_eq!(error.contains("debug-threads=on"), hint, "{error}");
    }

    #[test]
    fn none_several_and_oddly_named_ones_are_named_errors() {
        let error = |threads: &[(i32, i32, &str)]| find_vm(proc(threads).path()).unwrap_err().to_string();
        let none = error(&[(1, 1, "sh")]);
        assert!(none.contains("debug-threads=on"), "{none}");
        assert!(error(&[(5, 6, "CPU 0/KVM"), (7, 8, "CPU 0/TCG")]).contains("[5, 7]"));
        let single = sort(&[(1, "ALL CPUs/TCG".into())]).unwrap_err().to_string();
        assert!(single.contains("thread=single"), "{single}");
        let twice = sort(&[(1, "CPU 0/KVM".into()), (2, "CPU 0/KVM".into())]).unwrap_err();
        assert!(twice.to_string().contains("threads 1 and 2"));
    }
}
