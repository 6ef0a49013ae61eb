//! systemd: units, their limits, transient scopes, and the removal of empty ones; and holders.

use std::io;

use nix::errno::Errno;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File, Limits};
use stelia_kernel::holder::{Hold, Holders};
use stelia_kernel::systemd::{Devices, Listening, Systemd, SystemdError};
use zbus::export::async_trait::async_trait;

use super::counts::Call;
use super::procs::ForkKind;
use super::{Model, State};

/// A unit with a cgroup.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub cgroup: CgroupPath,
    pub limits: Limits,
    pub devices: Devices,
}

impl State {
    /// A unit's cgroup. A slice gets every controller for its children, as systemd does; a scope gets none.
    pub fn start_unit(&mut self, parent: &CgroupPath, name: &str, limits: &Limits) -> Result<CgroupPath, Errno> {
        let cgroup = parent.child(name);
        self.create(&cgroup)?;
        if name.ends_with(".slice") {
            self.write_control(&cgroup, "+cpuset +cpu +io +memory +hugetlb +pids")?;
        }
        self.set_limits(&cgroup, limits)?;
        let unit = Unit {
            cgroup: cgroup.clone(),
            limits: limits.clone(),
            devices: Devices {
                policy: "strict".into(),
                allow: Vec::new(),
            },
        };
        self.units.insert(name.to_owned(), unit);
        self.may_be_empty(&cgroup);
        Ok(cgroup)
    }

    fn unit_cgroup(&self, unit: &str) -> Result<CgroupPath, Errno> {
        Ok(self.units.get(unit).ok_or(Errno::ENOENT)?.cgroup.clone())
    }

    /// Sets which devices a unit's processes may open.
    pub fn restrict(&mut self, unit: &str, devices: &Devices) {
        if let Some(unit) = self.units.get_mut(unit) {
            unit.devices = devices.clone();
        }
    }

    /// Writes the limits that systemd manages, where the cgroup has the files.
    fn set_limits(&mut self, cgroup: &CgroupPath, limits: &Limits) -> Result<(), Errno> {
        let text = |limit: Option<u64>| limit.map_or("max".to_owned(), |limit| limit.to_string());
        let cpu_max = limits.cpu_max.map_or("max".to_owned(), |quota| quota.to_string());
        let mut files = vec![
            (File::MemoryMax, text(limits.memory_max)),
            (File::MemoryHigh, text(limits.memory_high)),
            (File::MemorySwapMax, text(limits.memory_swap_max)),
            (File::PidsMax, text(limits.pids_max)),
            (File::MemoryMin, limits.memory_min.to_string()),
            (File::MemoryLow, limits.memory_low.to_string()),
            (File::CpuMax, cpu_max),
        ];
        files.extend(limits.cpu_weight.map(|weight| (File::CpuWeight, weight.to_string())));
        files.extend(limits.io_weight.map(|weight| (File::IoWeight, weight.to_string())));
        for (file, value) in files {
            match self.write_file(cgroup, file, &value) {
                Err(Errno::ENOENT) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Removes a cgroup and those below it, inner ones first.
    pub fn remove_tree(&mut self, cgroup: &CgroupPath) {
        for path in self.subtree(cgroup).iter().rev() {
            // A cgroup that has tasks again is kept.
            let _ = self.remove(path);
        }
    }
}

impl Model {
    /// Makes systemd remove every empty scope.
    pub fn settle(&self) {
        let mut state = self.lock();
        state.remove_empty_scopes();
        state.mirror_events();
    }

    /// The limits a unit was started with.
    pub fn unit_limits(&self, unit: &str) -> Option<Limits> {
        self.lock().units.get(unit).map(|unit| unit.limits.clone())
    }

    /// The devices a unit was started with.
    pub fn unit_devices(&self, unit: &str) -> Option<Devices> {
        self.lock().units.get(unit).map(|unit| unit.devices.clone())
    }
}

fn failed<E: ToString>(operation: &str) -> impl FnOnce(E) -> SystemdError + '_ {
    move |cause| SystemdError {
        operation: operation.to_owned(),
        cause: cause.to_string(),
    }
}

impl Model {
    /// While this is set systemd answers no calls, including those under way.
    pub fn hang_systemd(&self, hangs: bool) {
        self.hanging.send_replace(hangs);
    }

    /// A change that systemd makes; `to` is part of the recorded text.
    async fn call(
        &self,
        operation: String,
        to: &str,
        change: impl FnOnce(&mut State) -> Result<(), Errno> + Send,
    ) -> Result<(), SystemdError> {
        self.wait_for_systemd().await;
        self.change(Call::Systemd, || format!("systemd: {operation}{to}"), change)
            .map_err(failed(&operation))
    }

    /// Waits while systemd hangs.
    async fn wait_for_systemd(&self) {
        // It fails only without a sender, which this node has.
        let _ = self.hanging.subscribe().wait_for(|hangs| !hangs).await;
    }
}

#[async_trait]
impl Systemd for Model {
    async fn devices(&self, unit: &str) -> Result<Option<Devices>, SystemdError> {
        self.wait_for_systemd().await;
        let state = self.ask(Call::Systemd, || format!("systemd: devices of {unit}"));
        Ok(state.units.get(unit).map(|unit| unit.devices.clone()))
    }

    async fn stop_emptied(&self, unit: &str) -> Result<(), SystemdError> {
        let stop = |state: &mut State| {
            state.units.remove(unit);
            Ok(())
        };
        self.call(format!("stop {unit}"), "", stop).await
    }

    async fn scopes(&self, pattern: &str) -> Result<Vec<(String, String)>, SystemdError> {
        self.wait_for_systemd().await;
        let (prefix, suffix) = pattern.split_once('*').unwrap_or((pattern, ""));
        let state = self.ask(Call::Systemd, || format!("systemd: list {pattern}"));
        let found = state.units.iter();
        let found = found.filter(|(name, _)| name.starts_with(prefix) && name.ends_with(suffix));
        Ok(found
            .map(|(name, unit)| (name.clone(), unit.cgroup.to_string()))
            .collect())
    }

    async fn limit(&self, unit: &str, limits: &Limits) -> Result<(), SystemdError> {
        let set = |state: &mut State| {
            let known = state.units.get_mut(unit).ok_or(Errno::ENOENT)?;
            known.limits = limits.clone();
            let cgroup = known.cgroup.clone();
            state.set_limits(&cgroup, limits)
        };
        self.call(format!("set limits of {unit}"), "", set).await
    }

    async fn weigh(&self, unit: &str, weight: u64) -> Result<(), SystemdError> {
        let set = |state: &mut State| {
            let cgroup = state.unit_cgroup(unit)?;
            state.write_file(&cgroup, File::CpuWeight, &weight.to_string())
        };
        let to = format!(" to {weight}");
        self.call(format!("set CPUWeight of {unit}"), &to, set).await
    }

    async fn protect(&self, unit: &str, min: u64, low: u64) -> Result<(), SystemdError> {
        let set = |state: &mut State| {
            let cgroup = state.unit_cgroup(unit)?;
            state.write_file(&cgroup, File::MemoryMin, &min.to_string())?;
            state.write_file(&cgroup, File::MemoryLow, &low.to_string())
        };
        let to = format!(" to {min} and {low}");
        self.call(format!("set MemoryMin and MemoryLow of {unit}"), &to, set)
            .await
    }

    async fn allow_cpus(&self, unit: &str, cpus: &CpuSet) -> Result<(), SystemdError> {
        let set = |state: &mut State| {
            let cgroup = state.unit_cgroup(unit)?;
            if cpus.is_empty() {
                // Some versions of systemd do not widen a live cpuset again.
                return Ok(());
            }
            state.write_file(&cgroup, File::Cpus, &cpus.to_string())
        };
        let to = format!(" to {cpus}");
        self.call(format!("set AllowedCPUs of {unit}"), &to, set).await
    }

    async fn run(&self, unit: &str) -> Result<(), SystemdError> {
        self.wait_for_systemd().await;
        let operation = format!("start {unit}");
        let id = unit
            .strip_prefix("steliad-try-runtime@")
            .and_then(|name| name.strip_suffix(".service"));
        let id = id.ok_or_else(|| failed(&operation)(format!("Unit {unit} not found.")))?;
        self.try_runtime(id).map_err(failed(&operation))
    }

    async fn listen(&self) -> Result<Listening, SystemdError> {
        self.wait_for_systemd().await;
        Ok(Listening::default())
    }

    async fn start_scope(
        &self,
        _: Listening,
        unit: &str,
        _: &str,
        pid: u32,
        limits: &Limits,
        devices: &Devices,
    ) -> Result<(), SystemdError> {
        self.wait_for_systemd().await;
        let operation = format!("start {unit}");
        let started = self.change(
            Call::Systemd,
            || format!("systemd: {operation}"),
            |state| {
                if state.units.contains_key(unit) {
                    return Ok(Err(format!("Unit {unit} was already loaded or has a fragment file.")));
                }
                let pid = i32::try_from(pid).map_err(|_| Errno::EINVAL)?;
                if !state.tasks.contains_key(&pid) {
                    return Ok(Err("Process to be placed in the scope is gone.".to_owned()));
                }
                let cgroup = state.start_unit(&CgroupPath::slice(), unit, limits)?;
                state.restrict(unit, devices);
                state.move_process(pid, &cgroup)?;
                Ok(Ok(()))
            },
        );
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
        let holder = || "start a holder".to_owned();
        let pid = self.change(Call::Holder, holder, |state| {
            state.fork(daemon, "steliad", ForkKind::Process)
        })?;
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
        // It may have been killed together with its scope.
        let _ = self.model.end(self.pid);
    }
}
