//! A kernel in memory for tests: a tree of files, and interrupts that follow the rules of `/proc/irq`.
//!
//! Files are texts with a mode. A write replaces the text, unless there is a *rule* for paths with this prefix: a rule may
//! change any file, and refuse the write with an error of the system. Interrupts are built in ([`interrupts`]): their files
//! are always what the kernel would show. A thread's affinity is set by a write to `/proc/<number>/affinity`, which has a rule.

pub mod interrupts;
pub mod tracefs;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use stelia_cpus::CpuSet;

use crate::files::{Files, Store, System};
#[cfg(test)]
use crate::order::OrderedVm;
use interrupts::Interrupts;
use tracefs::Tracefs;

/// What a write of a value to a path does to the tree.
pub type Rule = Arc<dyn Fn(&mut Tree, &str, &str) -> Result<(), Errno> + Send + Sync>;

/// A call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Read,
    Write,
    List,
    Make,
    Remove,
    Load,
    Save,
}

struct File {
    text: String,
    mode: u32,
}

struct QuietFailure {
    call: Call,
    path: String,
    errno: Errno,
    /// How many calls fail; `None`: all.
    left: Option<u32>,
}

/// All state of a [`FakeKernel`].
#[derive(Default)]
pub struct Tree {
    files: BTreeMap<String, File>,
    links: BTreeMap<String, String>,
    rules: Vec<(String, Rule)>,
    failures: Vec<QuietFailure>,
    /// Path and value of each write that succeeded, in order.
    pub writes: Vec<(String, String)>,
    /// How many files were read.
    pub reads: u32,
    /// How often something was saved.
    pub saves: u32,
    /// The values of the [`Store`].
    pub saved: BTreeMap<String, String>,
    pub interrupts: Interrupts,
    /// tracefs, where it is mounted.
    pub tracefs: Option<Tracefs>,
}

impl Tree {
    /// Make a file that can be written, or replace its text. A newline is appended, as the kernel does.
    pub fn put(&mut self, path: &str, text: &str) {
        let mode = self.files.get(path).map_or(0o644, |file| file.mode);
        self.put_mode(path, text, mode);
    }

    /// As [`put`](Self::put), with a mode.
    pub fn put_mode(&mut self, path: &str, text: &str, mode: u32) {
        self.files.insert(
            path.into(),
            File {
                text: format!("{text}\n"),
                mode,
            },
        );
    }

    /// Make a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.links.insert(path.into(), target.into());
    }

    /// Remove a file, a link, or a directory with all below it.
    pub fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.files.retain(|name, _| name != path && !name.starts_with(&below));
        self.links.retain(|name, _| name != path && !name.starts_with(&below));
    }

    /// A file's text, without the newline at its end.
    pub fn get(&self, path: &str) -> Option<&str> {
        let text = &self.files.get(path)?.text;
        Some(text.strip_suffix('\n').unwrap_or(text))
    }

    /// Let this rule handle all writes to paths with this prefix. The longest prefix wins.
    pub fn rule(
        &mut self,
        prefix: &str,
        rule: impl Fn(&mut Tree, &str, &str) -> Result<(), Errno> + Send + Sync + 'static,
    ) {
        self.rules.push((prefix.into(), Arc::new(rule)));
    }

    /// Let the next so many calls on this path (or this name of the store) fail; `None`: all.
    pub fn fail(&mut self, call: Call, path: &str, errno: Errno, times: Option<u32>) {
        self.failures.push(QuietFailure {
            call,
            path: path.into(),
            errno,
            left: times,
        });
    }

    /// Let no call fail any more.
    pub fn heal(&mut self) {
        self.failures.clear();
    }

    fn check(&mut self, call: Call, path: &str) -> io::Result<()> {
        let failure = self
            .failures
            .iter_mut()
            .find(|one| one.call == call && one.path == path && one.left != Some(0));
        let Some(failure) = failure else {
            return Ok(());
        };
        failure.left = failure.left.map(|left| left - 1);
        Err(failure.errno.into())
    }

    /// tracefs, if this is one of its paths.
    fn tracefs_at(&mut self, path: &str) -> Option<&mut Tracefs> {
        self.tracefs.as_mut().filter(|_| path.starts_with(tracefs::ROOT))
    }

    fn write(&mut self, path: &str, value: &str) -> io::Result<()> {
        self.check(Call::Write, path)?;
        if let Some(tracefs) = self.tracefs_at(path) {
            return tracefs.write(path, value);
        }
        let file = self.files.get(path).ok_or(Errno::NOENT)?;
        if file.mode & 0o222 == 0 {
            return Err(Errno::ACCESS.into());
        }
        let fits = self
            .rules
            .iter()
            .filter(|(prefix, _)| path.starts_with(prefix.as_str()));
        let rule = fits
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, rule)| rule.clone());
        match rule {
            Some(rule) => rule(self, path, value)?,
            None => self.put(path, value),
        }
        self.writes.push((path.into(), value.into()));
        Ok(())
    }

    fn list(&mut self, path: &str) -> io::Result<Vec<String>> {
        self.check(Call::List, path)?;
        if let Some(tracefs) = self.tracefs_at(path) {
            return tracefs.list(path);
        }
        let below = format!("{path}/");
        let names = self.files.keys().chain(self.links.keys());
        let names = names.filter_map(|name| name.strip_prefix(&below)?.split('/').next());
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        if names.is_empty() {
            Err(Errno::NOENT.into())
        } else {
            Ok(names.into_iter().collect())
        }
    }
}

/// A kernel in memory.
#[derive(Default)]
pub struct FakeKernel {
    tree: Mutex<Tree>,
}

impl FakeKernel {
    /// A node with this many CPUs, all online and in NUMA node 0.
    pub fn new(cpus: u32) -> Self {
        let kernel = Self::default();
        Interrupts::boot(&mut kernel.tree(), &[CpuSet::below(cpus)]);
        kernel
    }

    /// A node with these CPUs, by NUMA node.
    pub fn with_nodes(nodes: &[CpuSet]) -> Self {
        let kernel = Self::default();
        Interrupts::boot(&mut kernel.tree(), nodes);
        kernel
    }

    /// The state, to be read and changed.
    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn system(&self) -> System<'_> {
        System {
            files: self,
            store: self,
        }
    }
}

impl Files for FakeKernel {
    fn read(&self, path: &str) -> io::Result<String> {
        let mut tree = self.tree();
        tree.reads += 1;
        tree.check(Call::Read, path)?;
        if path == stelia_kernel::counters::interrupts::PATH {
            return Ok(tree.interrupts.table());
        }
        if let Some(tracefs) = tree.tracefs_at(path) {
            return tracefs.read(path);
        }
        Ok(tree.files.get(path).ok_or(Errno::NOENT)?.text.clone())
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        self.tree().write(path, value)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.tree().list(path)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let tree = self.tree();
        let target = tree.links.get(path).ok_or(Errno::NOENT)?;
        Ok(target.rsplit('/').next().unwrap_or_default().into())
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        let mut tree = self.tree();
        tree.check(Call::Make, path)?;
        tree.tracefs_at(path).ok_or(io::ErrorKind::Unsupported)?.make(path)
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        let mut tree = self.tree();
        tree.check(Call::Remove, path)?;
        tree.tracefs_at(path).ok_or(io::ErrorKind::Unsupported)?.remove(path)
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        Ok(self.tree().files.get(path).ok_or(Errno::NOENT)?.mode)
    }

    fn set_affinity(&self, thread: i32, cpus: &CpuSet) -> io::Result<()> {
        self.write(&format!("/proc/{thread}/affinity"), &cpus.to_string())
    }
}

impl Store for FakeKernel {
    fn load(&self, name: &str) -> io::Result<Option<String>> {
        let mut tree = self.tree();
        tree.check(Call::Load, name)?;
        Ok(tree.saved.get(name).cloned())
    }

    fn save(&self, name: &str, value: &str) -> io::Result<()> {
        let mut tree = self.tree();
        tree.check(Call::Save, name)?;
        tree.saves += 1;
        tree.saved.insert(name.into(), value.into());
        Ok(())
    }
}

#[cfg(test)]
pub(crate) fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A VM with these CPUs and nothing else.
#[cfg(test)]
pub(crate) fn vm(cpus: &str) -> OrderedVm {
    OrderedVm {
        cpus: set(cpus),
        ..OrderedVm::default()
    }
}
