//! What the runner says of itself, and what that means to a probe. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stelia_allocator::Qos;

/// Where the runner is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Waiting for the daemon to take the container in.
    Registering,
    /// Starting helpers and QEMU, handing the vCPUs over.
    Starting,
    /// The guest was let run, or waits for its migration.
    Up,
    /// The guest is being shut down.
    Stopping,
}

/// What the vCPUs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Nothing yet, or nothing at all.
    None,
    /// The whole promise.
    Isolated,
    /// The weaker promise of a host without isolated partitions.
    Contained,
    /// All that its class promises: a shared pool, and no CPUs of its own (LS, BE).
    Shared,
    /// The instance is known and its vCPUs run on shared CPUs, which is not what it is to have.
    Floating,
    /// Somebody deregistered the instance while it ran.
    Deregistered,
}

impl Isolation {
    /// By the daemon's name of the state, and the class.
    pub fn of(state: &str, qos: Option<Qos>) -> Isolation {
        match (state, qos) {
            ("isolated", _) => Isolation::Isolated,
            ("contained", _) => Isolation::Contained,
            ("floating", Some(Qos::Ls | Qos::Be)) => Isolation::Shared,
            _ => Isolation::Floating,
        }
    }

    /// The daemon holds what it promises.
    pub fn holds(self) -> bool {
        matches!(self, Isolation::Isolated | Isolation::Contained | Isolation::Shared)
    }

    /// What an instance of that class has, in words.
    pub fn promise(self, qos: Option<Qos>) -> &'static str {
        match self {
            Isolation::Isolated => "isolated",
            Isolation::Contained => "contained",
            Isolation::Shared if qos == Some(Qos::Be) => "BE, on the BE shared pool",
            Isolation::Shared => "LS, on the shared pool",
            Isolation::None | Isolation::Floating | Isolation::Deregistered => "not isolated",
        }
    }
}

/// All of it, as the probe's socket tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct State {
    /// Where the runner is in its life.
    pub phase: Phase,
    /// What the vCPUs have.
    pub isolation: Isolation,
    /// The instance's QoS class, by its name; nothing where kubelet chose the CPUs, and before the vCPUs are attached.
    #[serde(default, serialize_with = "named", deserialize_with = "by_name")]
    pub qos: Option<Qos>,
    /// Why it is not the whole promise; empty on the good day.
    pub reason: String,
    /// `--require-isolation`.
    pub require_isolation: bool,
    /// The daemon answers. What was promised stays in force while it does not.
    pub daemon: bool,
    /// QEMU's run state by QMP; `absent` before QEMU answers, `unknown` where no monitor is to be had.
    pub guest: String,
    /// The guest executed nothing before its vCPUs were attached.
    pub paused_start: bool,
    /// (vCPU, host thread, CPU) as attached; no CPU where it is not pinned.
    pub vcpus: Vec<(u32, u32, Option<u32>)>,
    /// QEMU's I/O threads by id, each with its thread in the container.
    pub iothreads: BTreeMap<String, i32>,
    /// The helpers by name: `running`, `waiting`, `ended`.
    pub helpers: BTreeMap<String, String>,
}

impl State {
    /// At the runner's start.
    pub fn new(require_isolation: bool, paused_start: bool) -> State {
        State {
            phase: Phase::Registering,
            isolation: Isolation::None,
            qos: None,
            reason: String::new(),
            require_isolation,
            daemon: false,
            guest: "absent".into(),
            paused_start,
            vcpus: Vec::new(),
            iothreads: BTreeMap::new(),
            helpers: BTreeMap::new(),
        }
    }

    /// Whether the VM may be counted on: what is so, or why not.
    pub fn readiness(&self) -> Result<String, String> {
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
        let promise = self.isolation.promise(self.qos);
        let promise = match (self.isolation.holds(), self.require_isolation) {
            (true, _) => promise.to_owned(),
            (false, false) => format!("degraded, {promise}"),
            (false, true) => return Err(because(promise)),
        };
        match self.guest.as_str() {
            "running" | "unknown" => Ok(because(&promise)),
            "inmigrate" => Ok(because(&format!("{promise}, ready for the migration"))),
            other => Err(format!("the guest is {other}")),
        }
    }

    /// Whether the runner works. That it answers at all is the whole of it: a restart of the container would cost the guest
    /// its life, and nothing short of a runner that hangs is worth that.
    pub fn liveness(&self) -> Result<String, String> {
        let phase = match self.phase {
            Phase::Registering => "registering",
            Phase::Starting => "starting",
            Phase::Up => "up",
            Phase::Stopping => "stopping",
        };
        Ok(format!("alive, {phase}"))
    }
}

/// An empty name is no class.
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

    fn up() -> State {
        State {
            phase: Phase::Up,
            isolation: Isolation::Isolated,
            guest: "running".into(),
            ..State::new(true, true)
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
        let state = State {
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
        let mut state = State {
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
        let state = State {
            isolation: Isolation::of("floating", Some(qos)),
            qos: Some(qos),
            ..up()
        };
        assert_eq!(state.readiness(), Ok(text.into()));
        assert!(state.isolation.holds());
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
    #[case("internal-error", false)]
    #[case("inmigrate", true)]
    #[case("unknown", true)]
    fn the_guest_itself_counts(#[case] guest: &str, #[case] ready: bool) {
        let state = State {
            guest: guest.into(),
            ..up()
        };
        assert_eq!(state.readiness().is_ok(), ready);
    }

    #[test]
    fn a_daemon_that_is_away_takes_nothing_from_a_ready_guest() {
        let state = State { daemon: false, ..up() };
        assert!(state.readiness().is_ok());
    }

    #[test]
    fn it_comes_back_as_it_was_written() {
        let text = serde_json::to_string(&up()).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), up());
        assert!(text.contains("\"isolation\":\"isolated\"") && text.contains("\"require-isolation\":true"));
        assert!(text.contains("\"qos\":\"\""), "{text}");
        let of_class = State {
            qos: Some(Qos::Lsr),
            ..up()
        };
        let text = serde_json::to_string(&of_class).unwrap();
        assert!(text.contains("\"qos\":\"LSR\""), "{text}");
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), of_class);
    }
}
