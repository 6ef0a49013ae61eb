//! The runner's state. `readiness` says what it means to a probe.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stelia_koordinator::allocator::Qos;

use super::resize::Resize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// RegisterInstance has not succeeded yet.
    Registering,
    /// Helpers and the VMM are started, the vCPUs attached.
    Starting,
    /// The guest runs, or waits for its migration.
    Up,
    Stopping,
}

/// How the vCPUs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Isolation {
    /// Not attached, or not registered.
    None,
    Isolated,
    /// Exclusive CPUs without a partition of the kernel.
    Pinned,
    /// On its shared pool, which is all that its class promises (LS, BE).
    Shared,
    /// On shared CPUs, though its class promises exclusive ones.
    Waiting,
    /// The instance was deregistered while the VM ran.
    Deregistered,
}

impl Isolation {
    /// Derived from the instance's property State and its class.
    pub(crate) fn of(state: &str, qos: Option<Qos>) -> Isolation {
        match (state, qos) {
            ("isolated", _) => Isolation::Isolated,
            ("pinned", _) => Isolation::Pinned,
            ("shared", _) => Isolation::Shared,
            _ => Isolation::Waiting,
        }
    }

    /// Whether the vCPUs have what the instance's class promises.
    pub(crate) fn is_as_promised(self) -> bool {
        matches!(self, Isolation::Isolated | Isolation::Pinned | Isolation::Shared)
    }

    /// In words, for messages and probes.
    pub(crate) fn promise(self, qos: Option<Qos>) -> &'static str {
        match self {
            Isolation::Isolated => "isolated",
            Isolation::Pinned => "pinned",
            Isolation::Shared if qos == Some(Qos::Be) => "BE, on the BE shared pool",
            Isolation::Shared => "LS, on the shared pool",
            Isolation::None | Isolation::Waiting | Isolation::Deregistered => "not isolated",
        }
    }
}

/// What the vCPUs of a VMM that cannot start paused did before the guest was paused: they ran on shared CPUs. In microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Window {
    /// From the last moment at which the guest had not run to its pause. The guest ran at most this long.
    pub(crate) wall_us: u64,
    /// The run time of all vCPU threads together, with their start; `None` if the kernel does not count it.
    pub(crate) run_us: Option<u64>,
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The JSON that the probe's socket answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RunnerState {
    pub(crate) phase: Phase,
    pub(crate) isolation: Isolation,
    /// `None` if kubelet chose the CPUs, and before the vCPUs are attached.
    #[serde(serialize_with = "named", deserialize_with = "by_name")]
    pub(crate) qos: Option<Qos>,
    /// Why the VM does not have what it was promised; else empty.
    pub(crate) reason: String,
    pub(crate) require_isolation: bool,
    /// Whether the daemon answers. While it does not, the VM keeps its CPUs.
    pub(crate) daemon: bool,
    /// The run state by its QMP name; `absent` before the VMM answers, `unknown` without a monitor.
    pub(crate) guest: String,
    /// The guest executed nothing before its vCPUs were attached.
    pub(crate) paused_start: bool,
    /// How long the vCPUs ran before they were attached, if the VMM cannot start paused.
    pub(crate) window: Option<Window>,
    /// The last change of the number of vCPUs that followed the CPUs.
    pub(crate) resize: Option<Resize>,
    /// The last change of the guest's memory that followed the memory limit.
    pub(crate) memory_resize: Option<Resize<u64>>,
    /// (vCPU, thread id on the host, CPU) as attached; the CPU is `None` if the vCPU is not pinned.
    pub(crate) vcpus: Vec<(u32, u32, Option<u32>)>,
    /// QEMU's I/O threads by id, each with its thread id in the container.
    pub(crate) iothreads: BTreeMap<String, i32>,
    /// The helpers by name: `running`, `waiting`, `ended`.
    pub(crate) helpers: BTreeMap<String, String>,
}

impl RunnerState {
    pub(crate) fn new(require_isolation: bool, paused_start: bool) -> RunnerState {
        RunnerState {
            phase: Phase::Registering,
            isolation: Isolation::None,
            qos: None,
            reason: String::new(),
            require_isolation,
            daemon: false,
            guest: "absent".into(),
            paused_start,
            window: None,
            resize: None,
            memory_resize: None,
            vcpus: Vec::new(),
            iothreads: BTreeMap::new(),
            helpers: BTreeMap::new(),
        }
    }
}

/// `None` is written as an empty name.
fn named<S: Serializer>(qos: &Option<Qos>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(qos.map_or("", Qos::name))
}

fn by_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Qos>, D::Error> {
    String::deserialize(deserializer).map(|name| Qos::parse(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up() -> RunnerState {
        RunnerState {
            phase: Phase::Up,
            isolation: Isolation::Isolated,
            guest: "running".into(),
            ..RunnerState::new(true, true)
        }
    }

    #[test]
    fn it_comes_back_as_it_was_written() {
        let text = serde_json::to_string(&up()).unwrap();
        assert_eq!(serde_json::from_str::<RunnerState>(&text).unwrap(), up());
        assert!(text.contains("\"isolation\":\"isolated\"") && text.contains("\"require-isolation\":true"));
        assert!(text.contains("\"qos\":\"\""), "{text}");
        let of_class = RunnerState {
            qos: Some(Qos::Lsr),
            ..up()
        };
        let text = serde_json::to_string(&of_class).unwrap();
        assert!(text.contains("\"qos\":\"LSR\""), "{text}");
        assert_eq!(serde_json::from_str::<RunnerState>(&text).unwrap(), of_class);
    }
}
