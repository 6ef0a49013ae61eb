//! What an event of QEMU's is to the runner. No event tells of a thread: those of a plug and an unplug are hints to ask.

use super::wire::Event;

/// What to do about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// The vCPU threads may be others now: ask for them.
    Threads,
    /// The guest runs, or does so no more: ask for its run state.
    RunState,
    /// Worth a line in the log.
    Tell,
    /// Nothing to do.
    Nothing,
}

/// The reaction to an event.
///
/// - A vCPU that is plugged is told of by nothing but the guest, and only by one that speaks ACPI to its firmware
///   (`ACPI_DEVICE_OST`).
/// - `DEVICE_DELETED` comes when the unplugged vCPU's thread has ended.
/// - A reset keeps the threads, but a plug that the guest has not noticed takes effect there.
pub fn reaction(event: &Event) -> Reaction {
    match event.name.as_str() {
        "ACPI_DEVICE_OST" | "DEVICE_DELETED" | "DEVICE_UNPLUG_GUEST_ERROR" | "RESET" => Reaction::Threads,
        "STOP" | "RESUME" | "SUSPEND" | "WAKEUP" | "GUEST_PANICKED" => Reaction::RunState,
        "SHUTDOWN" | "POWERDOWN" | "GUEST_CRASHLOADED" | "WATCHDOG" | "MEMORY_FAILURE" => Reaction::Tell,
        _ => Reaction::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("ACPI_DEVICE_OST", Reaction::Threads)]
    #[case("DEVICE_DELETED", Reaction::Threads)]
    #[case("RESET", Reaction::Threads)]
    #[case("STOP", Reaction::RunState)]
    #[case("RESUME", Reaction::RunState)]
    #[case("SHUTDOWN", Reaction::Tell)]
    #[case("NEW_IN_QEMU_99", Reaction::Nothing)]
    #[case("", Reaction::Nothing)]
    fn events_are_sorted(#[case] name: &str, #[case] expected: Reaction) {
        let event = Event {
            name: name.into(),
            data: serde_json::Value::Null,
        };
        assert_eq!(reaction(&event), expected);
    }
}
