//! What stands for a container: cgroups in our own one, with sleeping processes in them.

use std::fs;

use anyhow::{Context, bail};
use stelia_node::cgroup::{CgroupError, CgroupPath, Cgroups, File, KernelCgroups};
use stelia_node::holder::{Hold, Holders, KernelHolders};
use stelia_node::proc::{start_time, unified_cgroup};
use stelia_record::IN_PLACE;

use super::state::Process;

const HIERARCHY: &str = "/sys/fs/cgroup";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A container that nobody has touched: a cgroup with a process in it.
    Plain,
    /// One that is isolated in place: a threaded domain, with a process in each of `housekeeping` and `vcpu`.
    Threaded,
}

impl Shape {
    /// Cgroups in the container's own that its processes are in.
    fn children(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::Threaded => &IN_PLACE,
        }
    }
}

pub(super) struct Stand {
    cgroups: KernelCgroups,
    /// Whole subtree, outer levels first.
    levels: Vec<CgroupPath>,
    /// They end with this.
    sleepers: Vec<Box<dyn Hold>>,
}

impl Stand {
    /// Two levels below the unit: threaded cgroups directly in it would make the unit's own a threaded domain.
    pub(super) fn make(shape: Shape) -> anyhow::Result<Self> {
        let own = own_cgroup()?;
        let container = own.child("container");
        let mut stand = Self {
            cgroups: KernelCgroups::new(HIERARCHY),
            levels: vec![container],
            sleepers: Vec::new(),
        };
        match stand.furnish(shape) {
            Ok(()) => Ok(stand),
            Err(error) => {
                // What failed first is what is told.
                let _ = stand.remove();
                Err(error)
            }
        }
    }

    fn furnish(&mut self, shape: Shape) -> anyhow::Result<()> {
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

    /// The first of its processes, as the container's first one.
    pub(super) fn process(&self) -> anyhow::Result<Process> {
        let pid = self.sleepers.first().map(|sleeper| sleeper.pid());
        let pid = pid.context("the stand has no process")?;
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let start = start_time(&stat).with_context(|| format!("read {path}: unexpected form"))?;
        let cgroup = self.levels[0].to_string();
        Ok(Process { pid, start, cgroup })
    }

    /// End the processes and remove the cgroups: all that can be; the first error.
    pub(super) fn remove(self) -> anyhow::Result<()> {
        drop(self.sleepers);
        let removed = self.levels.iter().rev().map(|level| self.cgroups.remove(level));
        let removed: Vec<Result<(), CgroupError>> = removed.collect();
        removed.into_iter().collect::<Result<(), CgroupError>>()?;
        Ok(())
    }
}

/// Our own cgroup, if systemd has left it to us. In another one it would mind what we make there.
fn own_cgroup() -> anyhow::Result<CgroupPath> {
    let path = "/proc/self/cgroup";
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let own = unified_cgroup(&text).with_context(|| format!("read {path}: no cgroup v2 path"))?;
    let directory = KernelCgroups::new(HIERARCHY).directory(&own);
    let mut mark = [0; 1];
    // systemd's mark, since 251.
    let marked = rustix::fs::getxattr(&directory, "user.delegate", &mut mark);
    if marked != Ok(1) || mark != *b"1" {
        bail!("{own} is not delegated: steliad-try-runtime@.service runs this in a cgroup that is");
    }
    Ok(own)
}
