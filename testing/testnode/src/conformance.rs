//! The kernel's rules that the daemon relies on, as a list of operations with their expected outcomes.
//!
//! The same list runs on the model (a unit test) and on a real kernel (the test node), so that the model cannot differ
//! from the kernel unnoticed.

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File};

use Expect::{Fails, Is, Works};
use Operation::{Create, Read, Remove, Write};

/// An operation. Paths are below the base; `""` is the base. In values and texts `{pid}` stands for the process and
/// `{0}` to `{3}` for four consecutive CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create(&'static str),
    Remove(&'static str),
    Write(&'static str, File, &'static str),
    Read(&'static str, File),
}

/// The expected outcome: success, an errno, or the text that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Works,
    Fails(i32),
    Is(&'static str),
}

/// An outcome that is not the expected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The operation's index in the list, from 0.
    pub step: usize,
    pub operation: Operation,
    pub expected: Expect,
    /// The outcome: a text, `works`, or the error.
    pub found: String,
}

const EBUSY: i32 = nix::libc::EBUSY;
const EINVAL: i32 = nix::libc::EINVAL;
const ENOENT: i32 = nix::libc::ENOENT;
const ENOSPC: i32 = nix::libc::ENOSPC;
const EOPNOTSUPP: i32 = nix::libc::EOPNOTSUPP;
const ERANGE: i32 = nix::libc::ERANGE;
const ESRCH: i32 = nix::libc::ESRCH;

const BAD_LIST: &str = "isolated invalid (Invalid cpu list in cpuset.cpus.exclusive)";
const NO_PARENT: &str = "isolated invalid (Parent is not a partition root)";

/// Tree, types, moves, controllers, plain cpusets: the same on every kernel from 6.1 on.
pub const TREE: &[(Operation, Expect)] = &[
    (Create(""), Works),
    (Write("", File::SubtreeControl, "+cpuset +cpu +memory +pids"), Works),
    (Read("", File::SubtreeControl), Is("cpuset cpu memory pids")),
    (Read("", File::Type), Is("domain")),
    (Read("", File::Events), Is("populated 0\nfrozen 0")),
    (Create("a"), Works),
    (Create("a"), Works),
    (Create("a/b"), Works),
    (Create("none/b"), Fails(ENOENT)),
    (Read("a", File::Cpus), Is("")),
    (Read("a/b", File::Cpus), Fails(ENOENT)),
    (Write("a/b", File::SubtreeControl, "+cpuset"), Fails(ENOENT)),
    (Write("a", File::SubtreeControl, "+nonsense"), Fails(EINVAL)),
    (Remove("a"), Fails(EBUSY)),
    (Remove("none"), Works),
    // A process is moved in.
    (Write("a", File::Procs, "2147483647"), Fails(ESRCH)),
    (Write("a", File::Procs, "x"), Fails(EINVAL)),
    (Write("", File::Procs, "{pid}"), Fails(EBUSY)),
    (Write("a", File::Threads, "{pid}"), Fails(EOPNOTSUPP)),
    (Write("a", File::Procs, "{pid}"), Works),
    (Read("a", File::Procs), Is("{pid}")),
    (Read("", File::Procs), Is("")),
    (Read("a", File::Events), Is("populated 1\nfrozen 0")),
    (Read("", File::Events), Is("populated 1\nfrozen 0")),
    (Write("a", File::Type, "threaded"), Fails(EOPNOTSUPP)),
    // Controllers in a cgroup that has tasks: not allowed for memory's; with cpuset's it becomes the root of a threaded
    // domain.
    (Write("a", File::SubtreeControl, "+memory"), Fails(EBUSY)),
    (Write("a", File::SubtreeControl, "+cpuset +cpu"), Works),
    (Read("a", File::Type), Is("domain threaded")),
    (Read("a/b", File::Type), Is("domain invalid")),
    (Write("a/b", File::Procs, "{pid}"), Fails(EOPNOTSUPP)),
    (Write("a/b", File::Type, "domain"), Fails(EINVAL)),
    (Write("a/b", File::Type, "threaded"), Works),
    (Write("a/b", File::Type, "threaded"), Works),
    (Read("a/b", File::Type), Is("threaded")),
    (Write("a", File::SubtreeControl, "+memory"), Fails(EOPNOTSUPP)),
    (Read("a/b", File::Procs), Fails(EOPNOTSUPP)),
    (Write("a/b", File::Threads, "{pid}"), Works),
    (Read("a/b", File::Threads), Is("{pid}")),
    (Read("a", File::Threads), Is("")),
    (Read("a", File::Procs), Is("{pid}")),
    (Create("a/b/inner"), Works),
    (Read("a/b/inner", File::Type), Is("domain invalid")),
    (Remove("a/b/inner"), Works),
    (Remove("a/b"), Fails(EBUSY)),
    (Write("", File::SubtreeControl, "-cpuset"), Fails(EBUSY)),
    // Out of the domain the whole process moves, and it can be moved back by cgroup.procs of any cgroup of the domain.
    (Create("c"), Works),
    (Write("c", File::Threads, "{pid}"), Fails(EOPNOTSUPP)),
    (Write("c", File::Procs, "{pid}"), Works),
    (Read("a", File::Events), Is("populated 0\nfrozen 0")),
    (Write("a/b", File::Procs, "{pid}"), Works),
    (Read("a/b", File::Threads), Is("{pid}")),
    (Write("c", File::Procs, "{pid}"), Works),
    // Values of cpuset files.
    (Write("c", File::Cpus, "{0}"), Works),
    (Read("c", File::CpusEffective), Is("{0}")),
    (Write("c", File::Cpus, "{0}-{1}"), Works),
    (Read("c", File::Cpus), Is("{0}-{1}")),
    (Write("c", File::CpusEffective, "{0}"), Fails(EINVAL)),
    (Write("c", File::Cpus, "x"), Fails(EINVAL)),
    (Write("c", File::Cpus, "999999"), Fails(ERANGE)),
    (Write("c", File::Cpus, ""), Fails(ENOSPC)),
    (Write("a", File::Cpus, "{0}"), Works),
    (Write("a", File::Cpus, ""), Works),
    (Read("c", File::Mems), Is("")),
    (Write("c", File::Mems, "0"), Works),
    (Write("c", File::Mems, ""), Fails(ENOSPC)),
    // A node that there is not; for numbers that the kernel is not built for, on arm64 from 16 on, the error is another.
    (Write("c", File::Mems, "7"), Fails(EINVAL)),
    (Read("c", File::PidsMax), Is("max")),
    (Write("c", File::PidsMax, "7"), Works),
    (Read("c", File::PidsMax), Is("7")),
    (Write("c", File::PidsMax, "x"), Fails(EINVAL)),
    // Freezing. `cgroup.events` of a cgroup with tasks changes a little later; of one without, at once.
    (Read("c", File::Freeze), Is("0")),
    (Write("c", File::Freeze, "1"), Works),
    (Read("c", File::Freeze), Is("1")),
    (Create("c/inner"), Works),
    (Read("c/inner", File::Freeze), Is("0")),
    (Read("c/inner", File::Events), Is("populated 0\nfrozen 1")),
    (Write("c/inner", File::Freeze, "1"), Works),
    (Write("c/inner", File::Freeze, "0"), Works),
    (Read("c/inner", File::Events), Is("populated 0\nfrozen 1")),
    (Write("c", File::Freeze, "2"), Fails(ERANGE)),
    (Write("c", File::Freeze, "-1"), Fails(ERANGE)),
    (Write("c", File::Freeze, "99999999999"), Fails(ERANGE)),
    (Write("c", File::Freeze, "x"), Fails(EINVAL)),
    (Write("c", File::Freeze, ""), Fails(EINVAL)),
    (Read("c", File::Freeze), Is("1")),
    // A frozen process can be moved like any other.
    (Write("c/inner", File::Procs, "{pid}"), Works),
    (Write("a/b", File::Procs, "{pid}"), Works),
    (Write("a/b", File::Freeze, "1"), Works),
    (Read("a/b", File::Freeze), Is("1")),
    (Write("a/b", File::Freeze, "0"), Works),
    (Write("c", File::Procs, "{pid}"), Works),
    (Write("c", File::Freeze, "0"), Works),
    (Read("c", File::Freeze), Is("0")),
    (Remove("c/inner"), Works),
    (Write("c", File::Partition, "x"), Fails(EINVAL)),
    (Read("c", File::Partition), Is("member")),
    (Remove("a/b"), Works),
    (Remove("a"), Works),
    (Read("a", File::Type), Fails(ENOENT)),
];

/// Exclusive CPUs and remote partitions, where the kernel has them; continues after [`TREE`], with the process in `c`.
pub const PARTITIONS: &[(Operation, Expect)] = &[
    (Create("p"), Works),
    (Write("p", File::SubtreeControl, "+cpuset"), Works),
    (Create("p/q"), Works),
    (Write("p/q", File::SubtreeControl, "+cpuset"), Works),
    (Create("p/q/f"), Works),
    (Create("p/q/v"), Works),
    (Write("p/q/f", File::Cpus, "{0}"), Works),
    (Write("p/q/v", File::Cpus, "{1}"), Works),
    // A list that the cgroups above do not have is accepted and grants nothing.
    (Write("p/q/v", File::CpusExclusive, "{1}"), Works),
    (Read("p/q/v", File::CpusExclusive), Is("{1}")),
    (Read("p/q/v", File::CpusExclusiveEffective), Is("")),
    (Write("p/q/v", File::Partition, "isolated"), Works),
    (Read("p/q/v", File::Partition), Is(BAD_LIST)),
    (Write("", File::CpusExclusive, "{1}-{2}"), Works),
    (Write("p", File::CpusExclusive, "{1}"), Works),
    (Write("p/q", File::CpusExclusive, "{1}"), Works),
    (Read("p/q/v", File::CpusExclusiveEffective), Is("{1}")),
    // An invalid partition stays invalid until it is written again; the reason is now that of a local one.
    (Read("p/q/v", File::Partition), Is(NO_PARENT)),
    (Read("c", File::CpusEffective), Is("{0}-{1}")),
    (Write("p/q/v", File::Partition, "isolated"), Works),
    (Read("p/q/v", File::Partition), Is("isolated")),
    (Read("p/q/v", File::CpusEffective), Is("{1}")),
    // All other cgroups lose the CPU and keep the text.
    (Read("c", File::Cpus), Is("{0}-{1}")),
    (Read("c", File::CpusEffective), Is("{0}")),
    (Read("p/q/f", File::CpusEffective), Is("{0}")),
    // Siblings.
    (Create("d"), Works),
    (Write("d", File::CpusExclusive, "{1}"), Fails(EINVAL)),
    (Write("d", File::CpusExclusive, "{2}"), Works),
    (Write("p", File::CpusExclusive, "{1}-{2}"), Fails(EINVAL)),
    (Write("d", File::CpusExclusive, ""), Works),
    (Write("d", File::Cpus, "{2}"), Works),
    (Write("p", File::CpusExclusive, "{1}-{2}"), Fails(EINVAL)),
    (Write("d", File::Cpus, "{2}-{3}"), Works),
    // Grown from the outer cgroup to the inner.
    (Write("p", File::CpusExclusive, "{1}-{2}"), Works),
    (Write("p/q", File::CpusExclusive, "{1}-{2}"), Works),
    (Write("p/q/v", File::CpusExclusive, "{1}-{2}"), Works),
    (Read("p/q/v", File::Partition), Is("isolated")),
    (Read("d", File::CpusEffective), Is("{3}")),
    (Write("p/q/v", File::CpusExclusive, "{1}"), Works),
    (Read("d", File::CpusEffective), Is("{2}-{3}")),
    (Write("p/q/v", File::CpusExclusive, "x"), Fails(EINVAL)),
    (Write("p/q/v", File::CpusExclusive, "999999"), Fails(ERANGE)),
    // Released.
    (Write("p/q/v", File::Partition, "member"), Works),
    (Read("p/q/v", File::Partition), Is("member")),
    (Read("c", File::CpusEffective), Is("{0}-{1}")),
    (Write("p/q/v", File::Partition, "isolated"), Works),
    (Remove("p/q/v"), Works),
    (Read("c", File::CpusEffective), Is("{0}-{1}")),
];

/// Runs the lists below `base`, which must not exist yet and must be directly below the root, whose `subtree_control`
/// has cpuset, cpu, memory and pids. `pid` is a process of one thread outside `base` that may be moved. Afterwards it
/// is in `base`'s child `c`; the caller must end it and remove the cgroups. [`PARTITIONS`] runs where
/// `cpuset.cpus.exclusive` exists.
pub fn run(cgroups: &dyn Cgroups, base: &CgroupPath, pid: i32) -> Vec<Mismatch> {
    let cpus = cgroups.read(&CgroupPath::root(), File::CpusEffective);
    let cpus = cpus
        .ok()
        .and_then(|text| text.parse::<CpuSet>().ok())
        .unwrap_or_default();
    let in_a_row = |first: &u32| (1..4).all(|more| cpus.contains(first + more));
    let first = cpus.iter().find(in_a_row).unwrap_or_default();
    let fill = |text: &str| -> String {
        let text = text.replace("{pid}", &pid.to_string());
        (0..4).fold(text, |text, more| {
            text.replace(&format!("{{{more}}}"), &(first + more).to_string())
        })
    };
    let mut mismatches = Vec::new();
    let mut list = |offset: usize, list: &[(Operation, Expect)]| {
        for (index, (operation, expected)) in list.iter().enumerate() {
            let outcome = perform(cgroups, base, *operation, &fill);
            let good = match (&outcome, expected) {
                (Ok(None), Works) => true,
                (Ok(Some(text)), Is(wanted)) => *text == fill(wanted),
                (Err(error), Fails(errno)) => error.cause.raw_os_error() == Some(*errno),
                _ => false,
            };
            if !good {
                mismatches.push(Mismatch {
                    step: offset + index,
                    operation: *operation,
                    expected: *expected,
                    found: match outcome {
                        Ok(None) => "works".into(),
                        Ok(Some(text)) => text,
                        Err(error) => error.to_string(),
                    },
                });
            }
        }
    };
    list(0, TREE);
    if cgroups.read(base, File::CpusExclusive).is_ok() {
        list(TREE.len(), PARTITIONS);
    }
    mismatches
}

fn perform(
    cgroups: &dyn Cgroups,
    base: &CgroupPath,
    operation: Operation,
    fill: &dyn Fn(&str) -> String,
) -> Result<Option<String>, CgroupError> {
    let at = |path: &str| {
        if path.is_empty() {
            base.clone()
        } else {
            base.child(path)
        }
    };
    match operation {
        Create(path) => cgroups.create(&at(path)).map(|()| None),
        Remove(path) => cgroups.remove(&at(path)).map(|()| None),
        Write(path, file, value) => cgroups.write(&at(path), file, &fill(value)).map(|()| None),
        Read(path, file) => cgroups.read(&at(path), file).map(Some),
    }
}
