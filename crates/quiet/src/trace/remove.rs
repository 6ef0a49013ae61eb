//! Removes our instance of tracefs. It removes what the kernel shows, because another version may have set it up.

use rustix::io::Errno;

use super::TraceError;
use super::hist::as_written;
use super::plan::{DYNAMIC, INSTANCE, ROOT, SYNTHETIC, trigger};
use crate::failure::QuietFailure;
use crate::files::Files;

/// The event groups with our triggers. Another version may have used others: all groups are searched only if these were not all.
const GROUPS: [&str; 5] = ["synthetic", "sched", "irq", "irq_vectors", "nmi"];

/// Remove our instance, if there is one, and our synthetic events.
///
/// # Errors
/// Not everything could be removed.
pub(super) fn remove(files: &dyn Files) -> Result<(), TraceError> {
    if files.list(INSTANCE).is_ok() {
        remove_triggers(files, &GROUPS.map(str::to_owned));
        match files.remove_directory(INSTANCE) {
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::BUSY) => {
                let events = format!("{INSTANCE}/events");
                let groups = files.list(&events).map_err(QuietFailure::of("list", &events))?;
                remove_triggers(files, &groups);
                let removed = files.remove_directory(INSTANCE);
                removed.map_err(QuietFailure::of("remove", INSTANCE))?;
            }
            result => result.map_err(QuietFailure::of("remove", INSTANCE))?,
        }
    }
    // Without tracefs there are no events.
    let Ok(events) = files.read(DYNAMIC) else {
        return Ok(());
    };
    for name in SYNTHETIC {
        let line = format!("s:synthetic/{name}");
        if events.lines().any(|one| one.split_whitespace().next() == Some(&line)) {
            let text = format!("-:synthetic/{name}");
            files
                .write(DYNAMIC, &text)
                .map_err(QuietFailure::write(&text, DYNAMIC))?;
        }
    }
    Ok(())
}

/// Whether our instance or one of our synthetic events exists.
pub(super) fn exists(files: &dyn Files) -> bool {
    let mut events = SYNTHETIC.iter().map(|name| format!("{ROOT}/events/synthetic/{name}"));
    files.list(INSTANCE).is_ok() || events.any(|path| files.list(&path).is_ok())
}

/// Remove the triggers, those that read a variable first: the others are busy until then. Errors are ignored, because the
/// instance cannot be removed if a trigger is left.
fn remove_triggers(files: &dyn Files, groups: &[String]) {
    let mut triggers = Vec::new();
    for group in groups {
        for name in files.list(&format!("{INSTANCE}/events/{group}")).unwrap_or_default() {
            let path = trigger(&format!("{group}/{name}"));
            // `enable` and `filter` are files beside the events' directories.
            let Ok(text) = files.read(&path) else { continue };
            let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            triggers.extend(lines.map(|line| (path.clone(), as_written(without_state(line)))));
        }
    }
    let (readers, others): (Vec<_>, Vec<_>) = triggers.into_iter().partition(|(_, text)| text.contains(":onmatch("));
    for (path, text) in readers.into_iter().chain(others) {
        let _ = files.write(&path, &format!("!{text}"));
    }
}

/// A line of a trigger file without ` [active]`.
fn without_state(line: &str) -> &str {
    match line.rsplit_once(" [") {
        Some((text, "active]" | "paused]")) => text,
        _ => line,
    }
}
