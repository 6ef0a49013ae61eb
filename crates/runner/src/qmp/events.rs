//! What the runner does about an event of QEMU's. No event reports a thread: those of a plug and an unplug are hints to ask.

use super::wire::Event;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// The vCPU threads may have changed: query them.
    Threads,
    /// The run state may have changed: query it.
    RunState,
    /// The guest's memory may have changed: query it.
    Memory,
    /// Log it, nothing else.
    Log,
    /// Log it for debugging only.
    Nothing,
}

/// What to do about an event.
///
/// - A plugged vCPU is reported by the guest alone, and only by one with ACPI (`ACPI_DEVICE_OST`).
/// - `DEVICE_DELETED` comes after the unplugged vCPU's thread has ended.
/// - A reset keeps the threads, but completes a plug that the guest has not noticed.
pub fn reaction(event: &Event) -> Reaction {
    match event.name.as_str() {
        "ACPI_DEVICE_OST" | "DEVICE_DELETED" | "DEVICE_UNPLUG_GUEST_ERROR" | "RESET" => Reaction::Threads,
        "STOP" | "RESUME" | "SUSPEND" | "WAKEUP" | "GUEST_PANICKED" => Reaction::RunState,
        "MEMORY_DEVICE_SIZE_CHANGE" | "BALLOON_CHANGE" => Reaction::Memory,
        "SHUTDOWN" | "POWERDOWN" | "GUEST_CRASHLOADED" | "WATCHDOG" | "MEMORY_FAILURE" => Reaction::Log,
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
    #[case("MEMORY_DEVICE_SIZE_CHANGE", Reaction::Memory)]
    #[case("BALLOON_CHANGE", Reaction::Memory)]
    #[case("SHUTDOWN", Reaction::Log)]
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
