//! The files of the model's cgroups.

use std::collections::BTreeMap;
use std::fmt;

use nix::errno::Errno;
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, HugePage, IoMax};

use super::counts::Call;
use super::tree::CONTROLLERS;
use super::{Kernel, Model, State};

/// Indexes into [`CONTROLLERS`].
const CPUSET: usize = 0;
const CPU: usize = 1;
const IO: usize = 2;
const MEMORY: usize = 3;
const HUGETLB: usize = 4;
const PIDS: usize = 5;

/// `KERNFS_MAX_USER_XATTRS`.
const MAX_ATTRIBUTES: usize = 128;
/// `XATTR_NAME_MAX`, bytes.
const MAX_NAME: usize = 255;
/// `XATTR_SIZE_MAX`, bytes.
const MAX_VALUE: usize = 64 << 10;
/// `KERNFS_USER_XATTR_SIZE_LIMIT`, bytes: of all values of a cgroup.
const MAX_VALUES: usize = 128 << 10;

fn failed(operation: String) -> impl FnOnce(Errno) -> CgroupError {
    move |cause| CgroupError {
        operation,
        cause: cause.into(),
    }
}

/// What a file that is only stored says before it is written.
fn default(file: File) -> &'static str {
    match file {
        File::MemoryMin | File::MemoryLow | File::MemoryOomGroup => "0",
        File::CpuWeight => "100",
        File::CpuMax => "max 100000",
        File::IoWeight => "default 100",
        File::IoMax => "",
        _ => "max",
    }
}

fn lines(numbers: &[i32]) -> String {
    numbers.iter().map(i32::to_string).collect::<Vec<_>>().join("\n")
}

impl State {
    /// Whether the cgroup has the file: the root lacks some, and a controller's files exist only where it is enabled.
    fn check_file(&self, cgroup: &CgroupPath, file: File) -> Result<(), Errno> {
        self.group(cgroup)?;
        let root = *cgroup == CgroupPath::root();
        let old = self.kernel == Kernel::V6_1;
        let present = match file {
            File::Procs | File::Threads | File::SubtreeControl | File::Stat => true,
            File::Type | File::Events | File::Freeze => !root,
            File::CpusEffective => self.has_controller(cgroup, CPUSET),
            File::CpusIsolated => root && !old,
            File::Cpus | File::Mems | File::Partition => !root && self.has_controller(cgroup, CPUSET),
            File::CpusExclusive | File::CpusExclusiveEffective => !root && !old && self.has_controller(cgroup, CPUSET),
            File::PidsMax => !root && self.has_controller(cgroup, PIDS),
            File::CpuStat => true,
            File::CpuWeight | File::CpuMax => !root && self.has_controller(cgroup, CPU),
            // Debian's kernels are built without them.
            File::UclampMin | File::UclampMax => false,
            File::IoWeight | File::IoMax => !root && self.has_controller(cgroup, IO),
            File::HugetlbMax(size) | File::HugetlbReservedMax(size) => {
                !root && size == HugePage::Mb2 && self.has_controller(cgroup, HUGETLB)
            }
            File::MaxDescendants => !root,
            File::MemoryMax
            | File::MemoryHigh
            | File::MemoryMin
            | File::MemoryLow
            | File::MemorySwapMax
            | File::MemoryOomGroup
            | File::MemoryCurrent
            | File::MemoryStat => !root && self.has_controller(cgroup, MEMORY),
            // As in a kernel without NUMA: the model does not place memory on nodes.
            File::MemoryNumaStat | File::HugetlbNumaStat(_) => false,
        };
        if present { Ok(()) } else { Err(Errno::ENOENT) }
    }

    pub fn read_file(&self, cgroup: &CgroupPath, file: File) -> Result<String, Errno> {
        self.check_file(cgroup, file)?;
        let group = self.group(cgroup)?;
        let cpuset = &group.cpuset;
        Ok(match file {
            File::Procs => lines(&self.processes_in(cgroup)?),
            File::Threads => lines(&self.threads_in(cgroup)),
            File::Type => self.type_text(cgroup).to_owned(),
            File::SubtreeControl => {
                let names: Vec<&str> = group.control.iter().map(|index| CONTROLLERS[*index].0).collect();
                names.join(" ")
            }
            File::Events => self.events(cgroup),
            File::Stat => format!(
                "nr_descendants {}\nnr_dying_descendants 0",
                self.subtree(cgroup).len() - 1
            ),
            File::Freeze => u8::from(group.freeze).to_string(),
            File::Cpus => cpuset.cpus.to_string(),
            File::CpusEffective => self.effective(cgroup).to_string(),
            File::CpusExclusive => cpuset.exclusive.to_string(),
            File::CpusExclusiveEffective => self.granted(cgroup).to_string(),
            File::CpusIsolated => self.isolated().to_string(),
            File::Partition => cpuset.partition.text(),
            File::Mems => cpuset.mems.to_string(),
            File::MaxDescendants
            | File::PidsMax
            | File::MemoryMax
            | File::MemoryHigh
            | File::MemoryMin
            | File::MemoryLow
            | File::MemorySwapMax
            | File::MemoryOomGroup
            | File::CpuWeight
            | File::CpuMax
            | File::IoWeight
            | File::IoMax
            | File::HugetlbMax(_)
            | File::HugetlbReservedMax(_) => {
                let stored = group.stored.get(&file).cloned();
                stored.unwrap_or_else(|| default(file).to_owned())
            }
            File::MemoryCurrent => group.memory.to_string(),
            File::MemoryStat => format!("anon {}\nactive_file 0\ninactive_file 0", group.memory),
            File::CpuStat => "usage_usec 0".to_owned(),
            File::UclampMin | File::UclampMax | File::MemoryNumaStat | File::HugetlbNumaStat(_) => {
                return Err(Errno::ENOENT);
            }
        })
    }

    fn store(&mut self, cgroup: &CgroupPath, file: File, value: &str) -> Result<(), Errno> {
        self.group_mut(cgroup)?.stored.insert(file, value.to_owned());
        Ok(())
    }

    pub fn write_file(&mut self, cgroup: &CgroupPath, file: File, value: &str) -> Result<(), Errno> {
        self.check_file(cgroup, file)?;
        let value = value.trim();
        let id = || value.parse::<i32>().ok().filter(|id| *id > 0).ok_or(Errno::EINVAL);
        match file {
            File::Procs => self.move_process(id()?, cgroup),
            File::Threads => self.move_thread(id()?, cgroup),
            File::Type if value == "threaded" => self.make_threaded(cgroup),
            File::Type => Err(Errno::EINVAL),
            File::SubtreeControl => self.write_control(cgroup, value),
            File::Freeze => self.write_freeze(cgroup, value),
            File::Cpus => self.write_cpus(cgroup, value),
            File::CpusExclusive => self.write_exclusive(cgroup, value),
            File::Partition => self.write_partition(cgroup, value),
            File::Mems => self.write_mems(cgroup, value),
            File::CpuMax if value.starts_with("max") => self.store(cgroup, file, default(file)),
            File::CpuMax | File::MemoryOomGroup | File::MaxDescendants => self.store(cgroup, file, value),
            File::IoMax => {
                let (device, _) = value.split_once(' ').ok_or(Errno::EINVAL)?;
                let mut all = IoMax::parse(&self.read_file(cgroup, file)?);
                all.remove(device);
                all.extend(IoMax::parse(value));
                let lines: Vec<String> = all.iter().map(|(device, max)| format!("{device} {max}")).collect();
                self.store(cgroup, file, &lines.join("\n"))
            }
            File::PidsMax
            | File::MemoryMax
            | File::MemoryHigh
            | File::MemoryMin
            | File::MemoryLow
            | File::MemorySwapMax
            | File::CpuWeight
            | File::IoWeight
            | File::HugetlbMax(_)
            | File::HugetlbReservedMax(_) => {
                if (value, default(file)) != ("max", "max") {
                    value.parse::<u64>().map_err(|_| Errno::EINVAL)?;
                }
                let prefix = if file == File::IoWeight { "default " } else { "" };
                self.store(cgroup, file, &format!("{prefix}{value}"))
            }
            // Permissions do not stop root, but the file cannot be written.
            File::UclampMin
            | File::UclampMax
            | File::MemoryCurrent
            | File::MemoryStat
            | File::MemoryNumaStat
            | File::HugetlbNumaStat(_)
            | File::CpuStat
            | File::Events
            | File::Stat
            | File::CpusEffective
            | File::CpusExclusiveEffective
            | File::CpusIsolated => Err(Errno::EINVAL),
        }
    }
}

impl Cgroups for Model {
    fn exists(&self, cgroup: &CgroupPath) -> bool {
        let state = self.ask(Call::Read, || format!("exists {cgroup}"));
        state.groups.contains_key(cgroup)
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<String>, CgroupError> {
        self.some_children(cgroup, usize::MAX)
    }

    fn some_children(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<String>, CgroupError> {
        let list = || {
            let state = self.ask(Call::Read, || format!("list {cgroup}"));
            Ok(state.group(cgroup)?.children.iter().take(most).cloned().collect())
        };
        list().map_err(|cause| failed(format!("list {cgroup}"))(cause))
    }

    fn read(&self, cgroup: &CgroupPath, file: File) -> Result<String, CgroupError> {
        let what = || format!("read {}", Place(cgroup, file.name()));
        let state = self.ask(Call::Read, what);
        let read = if self.daemon.is_some() && state.unreadable.as_ref() == Some(cgroup) {
            Err(Errno::EIO)
        } else {
            state.read_file(cgroup, file)
        };
        drop(state);
        let read = read.map_err(|cause| failed(what())(cause))?;
        Ok(self.as_told(cgroup, file, read))
    }

    fn write(&self, cgroup: &CgroupPath, file: File, value: &str) -> Result<(), CgroupError> {
        let call = match file {
            File::Procs | File::Threads => Call::Move,
            _ => Call::Write,
        };
        let what = || format!("write {} {value}", Place(cgroup, file.name()));
        if let (Call::Move, Ok(id)) = (call, value.trim().parse()) {
            self.touch(id, Some(cgroup));
        }
        self.change(call, what, |state| state.write_file(cgroup, file, value))
            .map_err(|cause| failed(format!("write {value:?} to {}", Place(cgroup, file.name())))(cause))
    }

    fn create(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        let what = || format!("create {cgroup}");
        self.change(Call::Write, what, |state| state.create(cgroup))
            .map_err(|cause| failed(what())(cause))
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        let what = || format!("remove {cgroup}");
        self.change(Call::Write, what, |state| state.remove(cgroup))
            .map_err(|cause| failed(what())(cause))
    }

    fn owner(&self, cgroup: &CgroupPath) -> Result<u32, CgroupError> {
        let what = || format!("look at {cgroup}");
        let owner = self.ask(Call::Read, what).group(cgroup).map(|group| group.owner);
        owner.map_err(|cause| failed(what())(cause))
    }

    fn attributes(&self, cgroup: &CgroupPath) -> Result<BTreeMap<String, String>, CgroupError> {
        let read = || {
            let state = self.ask(Call::Read, || format!("attributes {cgroup}"));
            Ok(state.group(cgroup)?.attributes.clone())
        };
        read().map_err(|cause| failed(format!("read extended attributes of {cgroup}"))(cause))
    }

    fn set_attribute(&self, cgroup: &CgroupPath, name: &str, value: &str) -> Result<(), CgroupError> {
        let what = || format!("set {}{name} {value}", Place(cgroup, "user.stelia."));
        self.change(Call::Write, what, |state| {
            let attributes = &mut state.group_mut(cgroup)?.attributes;
            if "user.stelia.".len() + name.len() > MAX_NAME {
                return Err(Errno::ERANGE);
            }
            if value.len() > MAX_VALUE {
                return Err(Errno::E2BIG);
            }
            // One that is replaced counts until it is.
            let bytes: usize = attributes.values().map(String::len).sum();
            let is_new = !attributes.contains_key(name);
            if attributes.len() >= MAX_ATTRIBUTES && is_new || bytes + value.len() > MAX_VALUES {
                return Err(Errno::ENOSPC);
            }
            attributes.insert(name.to_owned(), value.to_owned());
            state.events_change(cgroup);
            // The record of an instance in place is on the pod's cgroup.
            if let Some(container) = name.strip_suffix(".schema") {
                state.events_change(&cgroup.child(container));
            }
            Ok(())
        })
        .map_err(|cause| failed(format!("set user.stelia.{name} of {cgroup} to {value:?}"))(cause))
    }

    fn remove_attribute(&self, cgroup: &CgroupPath, name: &str) -> Result<(), CgroupError> {
        let what = || format!("unset {}{name}", Place(cgroup, "user.stelia."));
        self.change(Call::Write, what, |state| {
            state.group_mut(cgroup)?.attributes.remove(name);
            Ok(())
        })
        .map_err(|cause| failed(format!("remove user.stelia.{name} of {cgroup}"))(cause))
    }
}

/// A file of a cgroup, for messages: the root's is not `//file`.
struct Place<'a>(&'a CgroupPath, &'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.as_str().trim_end_matches('/'), self.1)
    }
}
