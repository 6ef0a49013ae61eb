//! Kills the daemon before a change of the system, to test what a crash leaves behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stelia_cpus::CpuSet;
use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, Limits};
use stelia_kernel::systemd::{Devices, Listening, Systemd, SystemdError};
use zbus::export::async_trait::async_trait;

/// Wraps the system so that the process gets SIGKILL before its n-th change, where n is the environment variable
/// `STELIAD_FAILPOINT`. Without the variable, or if it is not a number, the system is returned unchanged.
pub fn beneath(system: System) -> System {
    let number = std::env::var("STELIAD_FAILPOINT").ok();
    let Some(number) = number.and_then(|text| text.parse().ok()) else {
        return system;
    };
    let changes = Arc::new(AtomicU32::new(number));
    System {
        cgroups: Arc::new(WithFailpoint(system.cgroups, changes.clone())),
        systemd: Arc::new(WithFailpoint(system.systemd, changes)),
        ..system
    }
}

/// A trait of the system, and the number of changes that remain before the fatal one.
struct WithFailpoint<T: ?Sized>(Arc<T>, Arc<AtomicU32>);

impl<T: ?Sized> WithFailpoint<T> {
    /// Counts a change; does not return at the n-th.
    fn change(&self, change: String) -> &T {
        if self.1.fetch_sub(1, Ordering::Relaxed) == 1 {
            eprintln!("killed before it would {change}");
            // It cannot fail for the process itself.
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
        &self.0
    }
}

impl Cgroups for WithFailpoint<dyn Cgroups> {
    fn exists(&self, cgroup: &CgroupPath) -> bool {
        self.0.exists(cgroup)
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<String>, CgroupError> {
        self.0.children(cgroup)
    }

    fn read(&self, cgroup: &CgroupPath, file: File) -> Result<String, CgroupError> {
        self.0.read(cgroup, file)
    }

    fn write(&self, cgroup: &CgroupPath, file: File, value: &str) -> Result<(), CgroupError> {
        self.change(format!("write {value} to {file:?} of {cgroup}"))
            .write(cgroup, file, value)
    }

    fn create(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.change(format!("create {cgroup}")).create(cgroup)
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.change(format!("remove {cgroup}")).remove(cgroup)
    }

    fn owner(&self, cgroup: &CgroupPath) -> Result<u32, CgroupError> {
        self.0.owner(cgroup)
    }

    fn attributes(&self, cgroup: &CgroupPath) -> Result<BTreeMap<String, String>, CgroupError> {
        self.0.attributes(cgroup)
    }

    fn set_attribute(&self, cgroup: &CgroupPath, name: &str, value: &str) -> Result<(), CgroupError> {
        self.change(format!("set_attribute {name} of {cgroup}"))
            .set_attribute(cgroup, name, value)
    }

    fn remove_attribute(&self, cgroup: &CgroupPath, name: &str) -> Result<(), CgroupError> {
        self.change(format!("remove_attribute {name} of {cgroup}"))
            .remove_attribute(cgroup, name)
    }
}

#[async_trait]
impl Systemd for WithFailpoint<dyn Systemd> {
    async fn devices(&self, unit: &str) -> Result<Option<Devices>, SystemdError> {
        self.0.devices(unit).await
    }

    async fn listen(&self) -> Result<Listening, SystemdError> {
        self.0.listen().await
    }

    async fn start_scope(
        &self,
        listening: Listening,
        unit: &str,
        description: &str,
        pid: u32,
        limits: &Limits,
        devices: &Devices,
    ) -> Result<(), SystemdError> {
        let systemd = self.change(format!("start {unit}"));
        systemd
            .start_scope(listening, unit, description, pid, limits, devices)
            .await
    }

    async fn run(&self, unit: &str) -> Result<(), SystemdError> {
        self.change(format!("run {unit}")).run(unit).await
    }

    async fn stop_emptied(&self, unit: &str) -> Result<(), SystemdError> {
        self.change(format!("stop_emptied {unit}")).stop_emptied(unit).await
    }

    async fn scopes(&self, pattern: &str) -> Result<Vec<(String, String)>, SystemdError> {
        self.0.scopes(pattern).await
    }

    async fn limit(&self, unit: &str, limits: &Limits) -> Result<(), SystemdError> {
        self.change(format!("limit {unit}")).limit(unit, limits).await
    }

    async fn weigh(&self, unit: &str, weight: u64) -> Result<(), SystemdError> {
        self.change(format!("weigh {unit}")).weigh(unit, weight).await
    }

    async fn protect(&self, unit: &str, min: u64, low: u64) -> Result<(), SystemdError> {
        self.change(format!("protect {unit}")).protect(unit, min, low).await
    }

    async fn allow_cpus(&self, unit: &str, cpus: &CpuSet) -> Result<(), SystemdError> {
        self.change(format!("allow_cpus {unit}")).allow_cpus(unit, cpus).await
    }
}
