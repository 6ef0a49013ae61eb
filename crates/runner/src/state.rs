//! The runner's state, and what it means to a probe. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stelia_allocator::Qos;

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
    Contained,
    /// On its shared pool, which is all that its class promises (LS, BE).
    Shared,
    /// On shared CPUs, though its class promises exclusive ones.
    Floating,
    /// The instance was deregistered while the VM ran.
    Deregistered,
}

impl Isolation {
    /// Derived from the instance's property State and its class.
    pub(crate) fn of(state: &str, qos: Option<Qos>) -> Isolation {
        match (state, qos) {
            ("isolated", _) => Isolation::Isolated,
            ("contained", _) => Isolation::Contained,
            ("floating", Some(Qos::Ls | Qos::Be)) => Isolation::Shared,
            _ => Isolation::Floating,
        }
    }

    /// Whether the vCPUs have what the instance's class promises.
    pub(crate) fn is_as_promised(self) -> bool {
        matches!(self, Isolation::Isolated | Isolation::Contained | Isolation::Shared)
    }

    /// In words, for messages and probes.
    pub(crate) fn promise(self, qos: Option<Qos>) -> &'static str {
        match self {
            Isolation::Isolated => "isolated",
            Isolation::Contained => "contained",
            Isolation::Shared if qos == Some(Qos::Be) => "BE, on the BE shared pool",
            Isolation::Shared => "LS, on the shared pool",
            Isolation::None | Isolation::Floating | Isolation::Deregistered => "not isolated",
        }
    }
}

/// How long the vCPUs of a guest that was booted before they were attached ran on shared CPUs, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct UnpinnedWindow {
    /// At most this long, by the clock.
    pub(crate) wall_us: u64,
    /// On a CPU, all of them together; `None` where the kernel does not count it.
    pub(crate) run_us: Option<u64>,
}

/// The JSON that the probe's socket answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RunnerState {
    pub(crate) phase: Phase,
    pub(crate) isolation: Isolation,
    /// `None` where kubelet chose the CPUs, and before the vCPUs are attached.
    #[serde(default, serialize_with = "named", deserialize_with = "by_name")]
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
    /// What its vCPUs ran before, of a VMM that cannot start paused.
    #[serde(default)]
    pub(crate) window: Option<UnpinnedWindow>,
    /// (vCPU, thread id on the host, CPU) as attached; `None` where it is not pinned.
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
            vcpus: Vec::new(),
            iothreads: BTreeMap::new(),
            helpers: BTreeMap::new(),
        }
    }

    /// `Ok` says what the VM has, `Err` why the pod is not ready.
    pub(crate) fn readiness(&self) -> Result<String, String> {
        let because = |text: &str| match self.reason.as_str() {
            "" => text.to_owned(),
            reason => format!("{text}: {reason}"),
        };
        match self.phase {
            Phase::Registering => return Err(because("registering")),
            Phase::Starting => return Err(because("not started")),
            Phase::Stopping => return Err("shutting down".into()),
            Phase::Up => {}
        }
        // First: a guest that has no vCPUs is not isolated either.
        let incoming = match self.guest.as_str() {
            "running" | "unknown" => false,
            "inmigrate" => true,
            other => return Err(because(&format!("the guest is {}", in_words(other)))),
        };
        let promise = self.isolation.promise(self.qos);
        let promise = match (self.isolation.is_as_promised(), self.require_isolation) {
            (true, _) => promise.to_owned(),
            (false, false) => format!("degraded, {promise}"),
            (false, true) => return Err(because(promise)),
        };
        match incoming {
            false => Ok(because(&promise)),
            true => Ok(because(&format!("{promise}, ready for the migration"))),
        }
    }

    /// Always `Ok`: a runner that answers is alive. A restart of the container ends the guest, so only a runner that hangs
    /// justifies one.
    pub(crate) fn liveness(&self) -> Result<String, String> {
        let phase = match self.phase {
            Phase::Registering => "registering",
            Phase::Starting => "starting",
            Phase::Up => "up",
            Phase::Stopping => "stopping",
        };
        Ok(format!("alive, {phase}"))
    }
}

/// A run state for people; by its QMP name where that says it.
pub(crate) fn in_words(guest: &str) -> &str {
    match guest {
        "shutdown" => "shut down",
        "prelaunch" => "not booted",
        other => other,
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
    use rstest::rstest;

    fn up() -> RunnerState {
        RunnerState {
            phase: Phase::Up,
            isolation: Isolation::Isolated,
            guest: "running".into(),
            ..RunnerState::new(true, true)
        }
    }

    #[test]
    fn an_isolated_guest_that_runs_is_ready() {
        assert_eq!(up().readiness(), Ok("isolated".into()));
    }

    #[rstest]
    #[case(Phase::Registering, "registering: no daemon")]
    #[case(Phase::Starting, "not started: no daemon")]
    #[case(Phase::Stopping, "shutting down")]
    fn before_and_after_it_is_not(#[case] phase: Phase, #[case] text: &str) {
        let state = RunnerState {
            phase,
            reason: "no daemon".into(),
            ..up()
        };
        assert_eq!(state.readiness(), Err(text.into()));
        assert!(state.liveness().is_ok());
    }

    #[rstest]
    #[case(Isolation::None)]
    #[case(Isolation::Floating)]
    #[case(Isolation::Deregistered)]
    fn without_isolation_the_policy_decides(#[case] isolation: Isolation) {
        let mut state = RunnerState {
            isolation,
            reason: "why".into(),
            ..up()
        };
        assert_eq!(state.readiness(), Err("not isolated: why".into()));
        state.require_isolation = false;
        assert_eq!(state.readiness(), Ok("degraded, not isolated: why".into()));
    }

    #[rstest]
    #[case(Qos::Ls, "LS, on the shared pool")]
    #[case(Qos::Be, "BE, on the BE shared pool")]
    fn a_class_without_cpus_of_its_own_is_whole_on_its_pool(#[case] qos: Qos, #[case] text: &str) {
        let state = RunnerState {
            isolation: Isolation::of("floating", Some(qos)),
            qos: Some(qos),
            ..up()
        };
        assert_eq!(state.readiness(), Ok(text.into()));
        assert!(state.isolation.is_as_promised());
    }

    #[rstest]
    #[case("floating", Some(Qos::Lse), Isolation::Floating)]
    #[case("floating", Some(Qos::Lsr), Isolation::Floating)]
    #[case("floating", None, Isolation::Floating)]
    #[case("leaving", Some(Qos::Ls), Isolation::Floating)]
    #[case("contained", Some(Qos::Lsr), Isolation::Contained)]
    fn who_has_cpus_of_its_own_is_not_whole_without(
        #[case] state: &str,
        #[case] qos: Option<Qos>,
        #[case] isolation: Isolation,
    ) {
        assert_eq!(Isolation::of(state, qos), isolation);
    }

    #[rstest]
    #[case("paused", false)]
    #[case("shutdown", false)]
    #[case("prelaunch", false)]
    #[case("suspended", false)]
    #[case("watchdog", false)]
    #[case("io-error", false)]
    #[case("guest-panicked", false)]
    #[case("postmigrate", false)]
    #[case("internal-error", false)]
    #[case("inmigrate", true)]
    #[case("unknown", true)]
    fn the_guest_itself_counts(#[case] guest: &str, #[case] ready: bool) {
        let state = RunnerState {
            guest: guest.into(),
            ..up()
        };
        assert_eq!(state.readiness().is_ok(), ready);
    }

    #[test]
    fn of_a_guest_that_was_shut_down_that_is_what_is_said() {
        let state = RunnerState {
            guest: "shutdown".into(),
            isolation: Isolation::Floating,
            reason: "vCPU 0 has ended".into(),
            ..up()
        };
        let text = "the guest is shut down: vCPU 0 has ended";
        assert_eq!(state.readiness(), Err(text.into()));
        let state = RunnerState {
            require_isolation: false,
            ..state
        };
        assert_eq!(state.readiness(), Err(text.into()));
    }

    #[test]
    fn a_daemon_that_is_away_takes_nothing_from_a_ready_guest() {
        let state = RunnerState { daemon: false, ..up() };
        assert!(state.readiness().is_ok());
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
