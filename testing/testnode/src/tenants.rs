//! Who may write a cgroup's files besides root: the tenant of a container that owns its cgroup, has it mounted writable, or may mount cgroups
//! itself (`cgroup-v2.rst`, "Model of Delegation" and "Namespace"). The model counts every tenant among these.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_kubelet::{ContainerCgroup, PodUid};

use super::Model;

/// The pod whose tenant may write this file; `None`: root alone may. In the root of a
/// tenant's cgroup namespace these are `cgroup.procs`, `cgroup.threads` and `cgroup.subtree_control`; below it, all files.
pub fn tenant_of(cgroup: &CgroupPath, file: File) -> Option<PodUid> {
    let is_delegated = matches!(file, File::Procs | File::Threads | File::SubtreeControl);
    let levels = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
    let mut levels = levels.filter(|level| is_delegated || level != cgroup);
    levels.find_map(|level| own_cgroup(&level))
}

/// The pod of a cgroup that a container sees as its root: its own, or of its instance the one that its threads are in.
fn own_cgroup(cgroup: &CgroupPath) -> Option<PodUid> {
    if let Some(container) = ContainerCgroup::parse(cgroup.as_str()) {
        return Some(container.pod);
    }
    let inner = cgroup.parent().filter(|inner| inner.name() == "instance")?;
    PodUid::from_scope(inner.parent()?.name()).filter(|_| matches!(cgroup.name(), "float" | "vcpu"))
}

impl Model {
    /// Gives a cgroup's directory to a user.
    pub fn chown(&self, cgroup: &CgroupPath, user: u32) -> io::Result<()> {
        self.outside(|state| {
            state.group_mut(cgroup)?.owner = user;
            Ok(())
        })
    }

    /// Writes a file as the tenant of this pod; EACCES where that is not its own.
    pub fn write_as(&self, tenant: &PodUid, cgroup: &CgroupPath, file: File, value: &str) -> io::Result<()> {
        if tenant_of(cgroup, file).as_ref() == Some(tenant) {
            self.meddle(cgroup, file, value)
        } else {
            Err(Errno::EACCES.into())
        }
    }

    /// The system of the daemon that runs, as it would be read if this tenant had written what it likes into all of its files.
    pub fn as_told_by(&self, tenant: &PodUid, system: &System) -> System {
        let daemon = Some(self.lock().daemon);
        let told_by = Some(tenant.clone());
        System {
            cgroups: Arc::new(Self {
                daemon,
                told_by,
                ..self.clone()
            }),
            ..system.clone()
        }
    }

    /// What a file says that has this text, where a tenant may have written it.
    pub(super) fn as_told(&self, cgroup: &CgroupPath, file: File, truth: String) -> String {
        if self.told_by.is_none() || tenant_of(cgroup, file) != self.told_by {
            return truth;
        }
        match file {
            File::Cpus | File::CpusExclusive => self.cpus().to_string(),
            File::Mems => self.memory_nodes().to_string(),
            File::MaxDescendants | File::CpuMax | File::PidsMax | File::MemoryMax | File::MemoryHigh => {
                "max".to_owned()
            }
            File::MemoryMin | File::MemoryLow => (1u64 << 40).to_string(),
            File::CpuWeight => "10000".to_owned(),
            _ => truth,
        }
    }
}
