//! The stand-in for a container: cgroups below the unit's own one, with sleeping processes in them.

use std::fs;

use anyhow::{Context, bail};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, KernelCgroups};
use stelia_kernel::holder::{Hold, Holders, KernelHolders};
use stelia_kernel::proc::{KernelProcs, Procs, unified_cgroup};
use stelia_model::record::IN_PLACE;

use super::container_state::Process;

const HIERARCHY: &str = "/sys/fs/cgroup";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A container as its runtime made it: a cgroup with a process in it.
    Plain,
    /// A container that is isolated in place: a threaded domain, with a process in each of `housekeeping` and `vcpu`.
    Threaded,
}

impl Shape {
    /// The cgroups below the container's own, which have its processes.
    fn children(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::Threaded => &IN_PLACE,
        }
    }
}

pub(super) struct StandIn {
    cgroups: KernelCgroups,
    /// Its cgroups, outer levels first.
    levels: Vec<CgroupPath>,
    /// The processes in the cgroups; they end when this is dropped.
    sleepers: Vec<Box<dyn Hold>>,
}

impl StandIn {
    /// Make the cgroups and processes. Threaded cgroups are two levels below the unit's cgroup, or that would become a threaded domain.
    pub(super) fn make(shape: Shape) -> anyhow::Result<Self> {
        let own = own_cgroup()?;
        let container = own.child("container");
        let mut stand_in = Self {
            cgroups: KernelCgroups::new(HIERARCHY),
            levels: vec![container],
            sleepers: Vec::new(),
        };
        match stand_in.fill(shape) {
            Ok(()) => Ok(stand_in),
            Err(error) => {
                // The first error is reported, not one of removing.
                let _ = stand_in.remove();
                Err(error)
            }
        }
    }

    fn fill(&mut self, shape: Shape) -> anyhow::Result<()> {
        let container = self.levels[0].clone();
        self.cgroups.create(&container)?;
        for name in shape.children() {
            let child = container.child(name);
            self.levels.push(child.clone());
            self.cgroups.create(&child)?;
            self.cgroups.write(&child, File::Type, "threaded")?;
        }
        let populated = match shape {
            Shape::Plain => 0..1,
            Shape::Threaded => 1..self.levels.len(),
        };
        for cgroup in &self.levels[populated] {
            let sleeper = KernelHolders.start().context("start a sleeping process")?;
            let pid = sleeper.pid().to_string();
            self.sleepers.push(sleeper);
            self.cgroups.write(cgroup, File::Procs, &pid)?;
        }
        Ok(())
    }

    /// The process that replaces the container's first one.
    pub(super) fn process(&self) -> anyhow::Result<Process> {
        let pid = self.sleepers.first().map(|sleeper| sleeper.pid());
        let pid = pid.context("the stand-in has no process")?;
        let start = KernelProcs::new("/proc").identify(i32::try_from(pid)?)?.start;
        let cgroup = self.levels[0].to_string();
        Ok(Process { pid, start, cgroup })
    }

    /// End the processes and remove every cgroup that can be removed.
    ///
    /// # Errors
    /// The first error.
    pub(super) fn remove(self) -> anyhow::Result<()> {
        drop(self.sleepers);
        let removed = self.levels.iter().rev().map(|level| self.cgroups.remove(level));
        let removed: Vec<Result<(), CgroupError>> = removed.collect();
        removed.into_iter().collect::<Result<(), CgroupError>>()?;
        Ok(())
    }
}

/// The unit's own cgroup, which systemd must have delegated: systemd interferes with cgroups that are made in any other.
fn own_cgroup() -> anyhow::Result<CgroupPath> {
    let path = "/proc/self/cgroup";
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let own = unified_cgroup(&text).with_context(|| format!("read {path}: no cgroup v2 path"))?;
    let directory = KernelCgroups::new(HIERARCHY).directory(&own);
    let mut mark = [0; 1];
    // systemd sets this attribute on delegated cgroups since 251.
    let marked = rustix::fs::getxattr(&directory, "user.delegate", &mut mark);
    if marked != Ok(1) || mark != *b"1" {
        bail!("{own} is not delegated: steliad-try-runtime@.service runs this in a cgroup that is");
    }
    Ok(own)
}
