//! What the runner's state means to a probe. Pure.

use super::state::{Phase, RunnerState};

impl RunnerState {
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
        if incoming {
            Ok(because(&format!("{promise}, ready for the migration")))
        } else {
            Ok(because(&promise))
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

/// A run state in words. This is its QMP name if that is clear.
pub(crate) fn in_words(guest: &str) -> &str {
    match guest {
        "shutdown" => "shut down",
        "prelaunch" => "not booted",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use stelia_koordinator::allocator::Qos;

    use super::*;
    use crate::state::Isolation;

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
    #[case(Isolation::Waiting)]
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
            isolation: Isolation::of("shared", Some(qos)),
            qos: Some(qos),
            ..up()
        };
        assert_eq!(state.readiness(), Ok(text.into()));
        assert!(state.isolation.is_as_promised());
    }

    #[rstest]
    #[case("waiting", Some(Qos::Lse), Isolation::Waiting)]
    #[case("waiting", Some(Qos::Lsr), Isolation::Waiting)]
    #[case("waiting", None, Isolation::Waiting)]
    #[case("releasing", Some(Qos::Ls), Isolation::Waiting)]
    #[case("pinned", Some(Qos::Lsr), Isolation::Pinned)]
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
            isolation: Isolation::Waiting,
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
}
