//! Writes to the journal through standard error, with the priority in front of the text (sd-daemon(3)).

/// Syslog's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Error = 3,
    Warning = 4,
    Info = 6,
}

pub(crate) fn log(priority: Priority, text: &str) {
    if libsystemd::logging::connected_to_journal() {
        // A line feed would begin another entry, without this priority.
        eprintln!("<{}>{}", priority as u8, text.replace('\n', " "));
    } else {
        eprintln!("steliad-quiet: {text}");
    }
}
