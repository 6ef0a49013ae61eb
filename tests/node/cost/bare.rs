//! A bare program that makes what the daemon makes for an instance, and knows everything beforehand.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use zbus::fdo::PropertiesProxy;
use zbus::names::InterfaceName;
use zbus::{ObjectPath, OwnedObjectPath, OwnedVariant, Variant, proxy};

use crate::support::*;

#[proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub trait Systemd {
    fn subscribe(&self) -> zbus::Result<()>;
    fn get_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    #[allow(clippy::type_complexity)]
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        aux: &[(&str, &[(&str, Variant<'_>)])],
    ) -> zbus::Result<OwnedObjectPath>;
    #[zbus(signal)]
    fn job_removed(&self, id: u32, job: ObjectPath<'_>, unit: &str, result: &str) -> zbus::Result<()>;
}

/// The limits of a container that an instance's scope gets: properties of a scope.
const LIMITS: [&str; 5] = ["MemoryMax", "TasksMax", "CPUWeight", "DevicePolicy", "DeviceAllow"];

type Limits = [(&'static str, OwnedVariant)];

pub async fn limits_of(
    bus: &Bus,
    systemd: &SystemdProxy<'_>,
    pod: &Pod,
) -> zbus::Result<Vec<(&'static str, OwnedVariant)>> {
    let unit = systemd.get_unit(&pod.unit()).await?;
    let of_unit = PropertiesProxy::builder(&bus.connection).destination("org.freedesktop.systemd1");
    let of_unit = of_unit.path(unit).build().await?;
    let interface = InterfaceName::from_static_str("org.freedesktop.systemd1.Scope")?;
    let mut limits = Vec::new();
    for name in LIMITS {
        limits.push((name, of_unit.get(interface.clone(), name).await?));
    }
    Ok(limits)
}

/// Makes an instance's cgroups without checks, reads and records.
pub struct Bare {
    /// Not in stelia.slice, which the daemon manages.
    slice: PathBuf,
    scope: PathBuf,
    pub writes: usize,
    pub moves: usize,
}

impl Bare {
    pub fn new() -> Self {
        let slice = Path::new(CGROUP).join("bare.slice");
        Self {
            scope: slice.join("bare.scope"),
            slice,
            writes: 0,
            moves: 0,
        }
    }

    fn write(&mut self, path: &Path, value: &str) {
        put(path, value);
        self.writes += 1;
    }

    fn make(&mut self, path: &Path) {
        let made = fs::DirBuilder::new().mode(0o755).create(path);
        made.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.writes += 1;
    }

    fn move_task(&mut self, id: u32, to: &Path) {
        self.write(to, &id.to_string());
        self.writes -= 1;
        self.moves += 1;
    }

    async fn scope(systemd: &SystemdProxy<'_>, holder: u32, limits: &Limits) {
        let mut removed = systemd.receive_job_removed().await.expect("signals");
        let mut properties = vec![
            ("Slice", Variant::from("bare.slice")),
            ("Delegate", Variant::from(true)),
            ("DefaultDependencies", Variant::from(false)),
            ("CollectMode", Variant::from("inactive-or-failed")),
            ("PIDs", Variant::from(vec![holder])),
        ];
        properties.extend(limits.iter().map(|(name, value)| (*name, Variant::from(value.clone()))));
        let job = systemd
            .start_transient_unit("bare.scope", "fail", &properties, &[])
            .await;
        let job = job.expect("StartTransientUnit");
        while let Some(signal) = removed.next().await {
            let arguments = signal.args().expect("JobRemoved");
            if arguments.job.as_str() == job.as_str() {
                assert_eq!(arguments.result, "done");
                return;
            }
        }
        panic!("no JobRemoved");
    }

    /// Makes the changes of a registration and an attach.
    pub fn isolate(&mut self, bus: &Bus, systemd: &SystemdProxy<'_>, limits: &Limits, sleeper: &Sleeper) -> Duration {
        let float_cpus = pool().to_string();
        let exclusive = sleeper.pod.exclusive();
        let list = exclusive.to_string();
        let started = Instant::now();
        let holder = Killed(Command::new("sleep").arg("1000").spawn().expect("sleep"));
        bus.block_on(Self::scope(systemd, holder.0.id(), limits));
        let (slice, scope) = (self.slice.clone(), self.scope.clone());
        let inner = scope.join("instance");
        let (float, vcpu) = (inner.join("float"), inner.join("vcpu"));
        self.make(&inner);
        self.move_task(holder.0.id(), &inner.join("cgroup.procs"));
        self.write(&scope.join("cgroup.subtree_control"), "+cpuset +cpu");
        for leaf in [&float, &vcpu] {
            self.make(leaf);
            self.write(&leaf.join("cgroup.type"), "threaded");
        }
        self.write(&inner.join("cgroup.subtree_control"), "+cpuset +cpu");
        self.write(&float.join("cpuset.cpus"), &float_cpus);
        for pid in [sleeper.pod.pid, sleeper.floats] {
            self.move_task(pid, &float.join("cgroup.procs"));
        }
        self.write(&slice.join("cpuset.cpus.exclusive"), &list);
        self.write(&vcpu.join("cpuset.cpus"), &list);
        for level in [&scope, &inner, &vcpu] {
            self.write(&level.join("cpuset.cpus.exclusive"), &list);
        }
        self.write(&vcpu.join("cpuset.cpus.partition"), kind());
        self.move_task(sleeper.pod.pid, &vcpu.join("cgroup.threads"));
        pin(sleeper.pod.pid, exclusive.iter()).expect("pinned");
        let took = started.elapsed();
        assert_eq!(read(vcpu.join("cpuset.cpus.partition")), kind());
        // The holder's end is not part of the comparison.
        took
    }

    pub fn undo(&self, sleeper: &Sleeper) {
        let inner = self.scope.join("instance");
        put(inner.join("vcpu/cpuset.cpus.partition"), "member");
        for pid in [sleeper.pod.pid, sleeper.floats] {
            pin(pid, 0..128).expect("anywhere");
            put(sleeper.pod.origin().join("cgroup.procs"), pid.to_string());
        }
        wait_until("the scope is gone", || !self.scope.exists());
        // An empty text would not be written.
        put(self.slice.join("cpuset.cpus.exclusive"), "\n");
    }
}
