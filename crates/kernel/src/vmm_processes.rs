//! The processes of a container, as far as a virtual machine monitor is known by them. Whatever is read here a pod has chosen:
//! it is bounded, and says nothing of who may do what.

use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use stelia_cpus::CpuSet;

use crate::cgroup::{CgroupError, CgroupPath, Cgroups, File, optional};
use crate::proc::{ProcError, Procs, TaskId};

/// Limit of the processes that are read for one container.
pub const MAX_PROCESSES: usize = 1024;
/// Limit of the processes of a container that may be its VMM: their command lines and threads are read.
pub const MAX_CANDIDATES: usize = 16;
/// Limit of the threads that are read for one process.
pub const MAX_PROCESS_THREADS: usize = 8192;
/// Bytes read of a command line: for the program's name, and for the whole line. Libvirt's command lines have about 20 KiB.
const MAX_PROGRAM_BYTES: usize = 4096;
const MAX_COMMAND_LINE_BYTES: usize = 256 << 10;

/// A process that may be a container's VMM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub task: TaskId,
    /// `comm`, at most 15 bytes.
    pub name: String,
    /// Its command line: the program first, then its arguments. What is beyond 256 KiB is missing.
    pub command: Vec<String>,
    /// Its threads that are named as vCPUs, by ascending id.
    pub vcpus: Vec<NamedThread>,
}

/// A thread with its name and the CPUs that it may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedThread {
    pub task: TaskId,
    pub name: String,
    pub affinity: CpuSet,
    /// [`Procs::has_run_guest`]
    pub has_run: bool,
}

/// Why the processes of a container are not known.
#[derive(Debug, thiserror::Error)]
pub enum ProcessesError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// More than the limit.
    #[error("{cgroup} has more than {most} {what}")]
    TooMany {
        cgroup: CgroupPath,
        most: usize,
        what: &'static str,
    },
}

/// The processes in `origin` whose name and program `is_vmm` wants, each with the threads whose names `is_vcpu` wants. A process
/// or thread that ends meanwhile, or leaves the cgroup, is left out.
///
/// # Errors
/// Something that exists cannot be read, or there is more than the limit.
pub fn candidates(
    cgroups: &dyn Cgroups,
    procs: &dyn Procs,
    origin: &CgroupPath,
    is_vmm: &dyn Fn(&str, &str) -> bool,
    is_vcpu: &dyn Fn(&str) -> bool,
) -> Result<Vec<Process>, ProcessesError> {
    let text = optional(cgroups.read(origin, File::Procs))?.unwrap_or_default();
    let too_many = |most, what| ProcessesError::TooMany {
        cgroup: origin.clone(),
        most,
        what,
    };
    let mut found = Vec::new();
    for (count, line) in text.lines().enumerate() {
        if count == MAX_PROCESSES {
            return Err(too_many(MAX_PROCESSES, "processes"));
        }
        // 0 is a process of a PID namespace that cannot be seen from here.
        let Some(pid) = line.parse::<i32>().ok().filter(|pid| *pid > 0) else {
            continue;
        };
        match candidate(procs, origin, pid, is_vmm, is_vcpu) {
            Ok(Some(_)) if found.len() == MAX_CANDIDATES => {
                return Err(too_many(MAX_CANDIDATES, "processes that may be its VMM"));
            }
            Ok(process) => found.extend(process),
            Err(ProcessesError::Proc(error)) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn candidate(
    procs: &dyn Procs,
    origin: &CgroupPath,
    pid: i32,
    is_vmm: &dyn Fn(&str, &str) -> bool,
    is_vcpu: &dyn Fn(&str) -> bool,
) -> Result<Option<Process>, ProcessesError> {
    let task = procs.identify(pid)?;
    let name = procs.name(pid);
    let program = procs
        .command(pid, MAX_PROGRAM_BYTES)?
        .into_iter()
        .next()
        .unwrap_or_default();
    if !is_vmm(&name, &program) {
        return Ok(None);
    }
    let command = procs.command(pid, MAX_COMMAND_LINE_BYTES)?;
    let mut ids = procs.thread_ids(pid)?;
    if ids.len() > MAX_PROCESS_THREADS {
        return Err(ProcessesError::TooMany {
            cgroup: origin.clone(),
            most: MAX_PROCESS_THREADS,
            what: "threads in one process",
        });
    }
    ids.sort_unstable();
    let mut vcpus = Vec::new();
    for id in ids {
        let name = procs.name(id);
        if !is_vcpu(&name) {
            continue;
        }
        let thread = procs
            .identify(id)
            .and_then(|task| Ok((task, procs.process_and_affinity(id)?, procs.has_run_guest(id)?)));
        match thread {
            // The number may be another process's thread by now.
            Ok((task, (process, affinity), has_run)) if process == pid => vcpus.push(NamedThread {
                task,
                name,
                affinity,
                has_run,
            }),
            Ok(_) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    // The number was read from the cgroup before all this: it may have become that of a process elsewhere, and what was read
    // after that is no concern of this container.
    let same = procs.identify(pid)? == task && procs.cgroup(pid)?.is_within(origin);
    Ok(same.then_some(Process {
        task,
        name,
        command,
        vcpus,
    }))
}

/// The arguments in the first `most` bytes of a command line. Bytes that are not UTF-8 are replaced.
pub(crate) fn command(path: &Path, most: usize) -> std::io::Result<Vec<String>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(MAX_PROGRAM_BYTES);
    while bytes.len() < most {
        bytes.reserve(MAX_PROGRAM_BYTES.min(most - bytes.len()));
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
    bytes.truncate(most);
    Ok(arguments(&bytes))
}

/// Each argument ends with a NUL. A process that changed its title may have none at all, or something else behind them.
fn arguments(bytes: &[u8]) -> Vec<String> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let whole = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    let arguments = whole.split(|byte| *byte == 0);
    arguments
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::KernelCgroups;
    use crate::proc::KernelProcs;
    use crate::test_root::Root;

    const ORIGIN: &str = "/kubepods.slice/a.scope";

    const LIST: &str = "cgroup/kubepods.slice/a.scope/cgroup.procs";

    /// A process or, with another `pid`, a thread of it.
    fn task(root: &Root, pid: i32, tid: i32, name: &str, command: &[u8], cgroup: &str) {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        for place in [
            format!("proc/{tid}"),
            format!("proc/{tid}/task/{tid}"),
            format!("proc/{pid}/task/{tid}"),
        ] {
            let status = format!("Name:\t{name}\nTgid:\t{pid}\nNSpid:\t{tid}\t1\nCpus_allowed_list:\t2\n");
            let stat = format!("{tid} ({name}) S {}", fields.join(" "));
            root.file(&format!("{place}/comm"), format!("{name}\n"))
                .file(&format!("{place}/status"), status)
                .file(&format!("{place}/stat"), stat)
                .file(&format!("{place}/cgroup"), format!("0::{cgroup}\n"))
                .file(&format!("{place}/cmdline"), command);
        }
    }

    fn found(root: &Path) -> Result<Vec<Process>, ProcessesError> {
        let cgroups = KernelCgroups::new(root.join("cgroup"));
        let procs = KernelProcs::new(root.join("proc"));
        let origin = CgroupPath::parse(ORIGIN).unwrap();
        let is_vmm = |name: &str, program: &str| name == "qemu-kvm" || program.ends_with("qemu-kvm");
        candidates(&cgroups, &procs, &origin, &is_vmm, &|name| name.starts_with("CPU "))
    }

    #[test]
    fn the_processes_that_may_be_the_vmm_have_their_threads_and_the_others_are_not_read_further() {
        let root = &Root::new();
        root.file(LIST, "7\n20\n30\n99\n0\n");
        task(root, 7, 7, "virt-launcher", b"/usr/bin/virt-launcher\0", ORIGIN);
        let command = b"/usr/libexec/qemu-kvm\0-smp\x002\0-name\0\xff\0";
        task(root, 20, 20, "qemu-kvm", command, ORIGIN);
        for (tid, name) in [(22, "CPU 1/KVM"), (21, "CPU 0/KVM"), (23, "IO iothread0")] {
            task(root, 20, tid, name, b"", ORIGIN);
        }
        // Its number was in the list, and is a process of another pod by now.
        task(root, 30, 30, "qemu-kvm", b"qemu-kvm\0", "/kubepods.slice/b.scope");
        let found = found(root).unwrap();
        let [vm] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((vm.task.id, vm.name.as_str()), (20, "qemu-kvm"));
        assert_eq!(vm.command, ["/usr/libexec/qemu-kvm", "-smp", "2", "-name", "\u{fffd}"]);
        let vcpus: Vec<(i32, &str, String)> = vm
            .vcpus
            .iter()
            .map(|thread| (thread.task.id, thread.name.as_str(), thread.affinity.to_string()))
            .collect();
        assert_eq!(vcpus, [(21, "CPU 0/KVM", "2".into()), (22, "CPU 1/KVM", "2".into())]);
    }

    #[test]
    fn more_processes_than_a_vm_has_are_refused_and_none_is_no_error() {
        let root = Root::new();
        assert!(found(&root).unwrap().is_empty());
        let list: String = (1..=MAX_PROCESSES + 1).map(|pid| format!("{pid}\n")).collect();
        root.file(LIST, list);
        let refused = found(&root).unwrap_err().to_string();
        assert_eq!(refused, format!("{ORIGIN} has more than 1024 processes"));
    }

    #[test]
    fn of_a_long_command_line_the_beginning_is_read() {
        let root = Root::new();
        let path = root.at("cmdline");
        let long = [b"qemu-kvm\0".as_slice(), &vec![b'x'; 20_000], b"\0-smp\x002\0"].concat();
        root.file("cmdline", long);
        assert_eq!(command(&path, 64).unwrap()[0], "qemu-kvm");
        assert_eq!(command(&path, 64).unwrap()[1].len(), 55);
        assert_eq!(command(&path, 1 << 20).unwrap()[2..], ["-smp", "2"]);
        root.file("cmdline", "");
        assert!(command(&path, 64).unwrap().is_empty());
        root.file("cmdline", "\0\0");
        assert_eq!(command(&path, 64).unwrap(), ["", ""]);
    }
}
