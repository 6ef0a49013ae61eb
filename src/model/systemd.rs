//! systemd: units, their limits, transient scopes, and what becomes of an empty one. Holders too.

use std::fs;
use std::io;

use nix::errno::Errno;
use zbus::export::async_trait::async_trait;

use super::procs::Birth;
use super::{Model, State};
use crate::cgroup::{CgroupPath, File};
use crate::engine::holder::{Hold, Holders};
use crate::systemd::{Limits, Systemd, SystemdError};

/// A unit with a cgroup.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub cgroup: CgroupPath,
    pub limits: Limits,
}

impl State {
    /// A unit's cgroup with every controller for what is in it, as systemd makes it for a slice; a scope's stays without.
    pub fn start_unit(&mut self, parent: &CgroupPath, name: &str, limits: &Limits) -> Result<CgroupPath, Errno> {
        let cgroup = parent.child(name);
        self.create(&cgroup)?;
        if name.ends_with(".slice") {
            self.write_control(&cgroup, "+cpuset +cpu +io +memory +hugetlb +pids")?;
        }
        if let Some(max) = limits.tasks_max.filter(|max| *max != u64::MAX) {
            self.write_file(&cgroup, File::PidsMax, &max.to_string())?;
        }
        let unit = Unit {
            cgroup: cgroup.clone(),
            limits: limits.clone(),
        };
        self.units.insert(name.to_owned(), unit);
        Ok(cgroup)
    }

    /// systemd's answer to a scope in which nothing runs any more.
    pub fn remove_empty_scopes(&mut self) {
        let empty: Vec<(String, CgroupPath)> = self
            .units
            .iter()
            .filter(|(name, unit)| name.ends_with(".scope") && !self.populated(&unit.cgroup))
            .map(|(name, unit)| (name.clone(), unit.cgroup.clone()))
            .collect();
        for (name, cgroup) in empty {
            self.units.remove(&name);
            self.remove_tree(&cgroup);
        }
    }

    /// Remove a cgroup and what is in it, inner ones first.
    pub fn remove_tree(&mut self, cgroup: &CgroupPath) {
        for path in self.subtree(cgroup).iter().rev() {
            // Whoever moved in meanwhile keeps it.
            let _ = self.remove(path);
        }
    }

    /// `cgroup.events` of the scopes in stelia.slice as files: what the engine watches with inotify.
    pub fn mirror_events(&self) {
        let slice = self.directory.join("cgroup/stelia.slice");
        let scopes = self.children(&CgroupPath::slice());
        for scope in &scopes {
            let directory = slice.join(scope.name());
            let text = format!("populated {}\nfrozen 0\n", u8::from(self.populated(scope)));
            let file = directory.join(File::Events.name());
            if fs::read_to_string(&file).ok().as_ref() != Some(&text) {
                // A missing file costs a wake-up only.
                let _ = fs::create_dir_all(&directory).and_then(|()| fs::write(&file, text));
            }
        }
        for entry in fs::read_dir(&slice).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if !scopes.iter().any(|scope| Some(scope.name()) == name.to_str()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Model {
    /// Let systemd remove every scope that is empty.
    pub fn settle(&self) {
        let mut state = self.lock();
        state.remove_empty_scopes();
        state.mirror_events();
    }

    /// The limits a unit was started with.
    pub fn unit_limits(&self, unit: &str) -> Option<Limits> {
        self.lock().units.get(unit).map(|unit| unit.limits.clone())
    }
}

fn failed<E: ToString>(operation: &str) -> impl FnOnce(E) -> SystemdError + '_ {
    move |cause| SystemdError {
        operation: operation.to_owned(),
        cause: cause.to_string(),
    }
}

#[async_trait]
impl Systemd for Model {
    async fn limits(&self, unit: &str) -> Result<Limits, SystemdError> {
        let operation = format!("read the limits of {unit}");
        let state = self.lock();
        let found = state.units.get(unit).map(|unit| unit.limits.clone());
        found.ok_or_else(|| failed(&operation)(format!("Unit {unit} not loaded.")))
    }

    async fn start_scope(&self, unit: &str, _: &str, pid: u32, limits: &Limits) -> Result<(), SystemdError> {
        let operation = format!("start {unit}");
        let started = self.change(|state| {
            if state.units.contains_key(unit) {
                return Ok(Err(format!("Unit {unit} was already loaded or has a fragment file.")));
            }
            let pid = i32::try_from(pid).map_err(|_| Errno::EINVAL)?;
            if !state.tasks.contains_key(&pid) {
                return Ok(Err("Process to be placed in the scope is gone.".to_owned()));
            }
            let cgroup = state.start_unit(&CgroupPath::slice(), unit, limits)?;
            state.move_process(pid, &cgroup)?;
            Ok(Ok(()))
        });
        started.map_err(failed(&operation))?.map_err(failed(&operation))
    }
}

struct Holder {
    model: Model,
    pid: i32,
}

impl Holders for Model {
    fn start(&self) -> io::Result<Box<dyn Hold>> {
        let daemon = self.lock().daemon_process()?;
        let pid = self.change(|state| state.fork(daemon, "steliad", Birth::Process))?;
        Ok(Box::new(Holder {
            model: self.clone(),
            pid,
        }))
    }
}

impl Hold for Holder {
    fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have been killed with what it was in.
        let _ = self.model.end(self.pid);
    }
}
