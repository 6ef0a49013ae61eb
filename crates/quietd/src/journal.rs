//! What is said to the journal: standard error, which systemd passes on, with the priority in front (sd-daemon(3)).

/// Syslog's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Error = 3,
    Warning = 4,
    Info = 6,
}

pub(crate) fn say(priority: Priority, text: &str) {
    match libsystemd::logging::connected_to_journal() {
        // A line feed would begin another entry, of another priority.
        true => eprintln!("<{}>{}", priority as u8, text.replace('\n', " ")),
        false => eprintln!("steliad-quiet: {text}"),
    }
}
