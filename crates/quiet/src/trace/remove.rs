//! Removing our instance of tracefs, whoever left it: by what the kernel says is there, not by what should be.

use std::io;

use rustix::io::Errno;

use super::TraceError;
use super::plan::{DYNAMIC, INSTANCE, ROOT, SYNTHETIC, trigger};
use crate::files::Files;

/// Where our triggers are. An older or newer version may have had others: all events are looked at only if these were not all.
const GROUPS: [&str; 5] = ["synthetic", "sched", "irq", "irq_vectors", "nmi"];

/// Remove it, and our synthetic events. Does nothing where there is none.
///
/// # Errors
/// Something is left.
pub(super) fn remove(files: &dyn Files) -> Result<(), TraceError> {
    if files.list(INSTANCE).is_ok() {
        remove_triggers(files, &GROUPS.map(str::to_owned));
        match files.remove_directory(INSTANCE) {
            Err(cause) if is(&cause, Errno::BUSY) => {
                let events = format!("{INSTANCE}/events");
                let groups = files.list(&events).map_err(TraceError::of("list", &events))?;
                remove_triggers(files, &groups);
                let again = files.remove_directory(INSTANCE);
                again.map_err(TraceError::of("remove", INSTANCE))?;
            }
            result => result.map_err(TraceError::of("remove", INSTANCE))?,
        }
    }
    // Where there is no tracefs there are none.
    let Ok(events) = files.read(DYNAMIC) else {
        return Ok(());
    };
    for name in SYNTHETIC {
        let line = format!("s:synthetic/{name}");
        if events.lines().any(|one| one.split_whitespace().next() == Some(&line)) {
            let text = format!("-:synthetic/{name}");
            files.write(DYNAMIC, &text).map_err(TraceError::write(&text, DYNAMIC))?;
        }
    }
    Ok(())
}

/// Whether anything of ours is there.
pub(super) fn is_there(files: &dyn Files) -> bool {
    let mut left = SYNTHETIC.iter().map(|name| format!("{ROOT}/events/synthetic/{name}"));
    files.list(INSTANCE).is_ok() || left.any(|path| files.list(&path).is_ok())
}

/// Those that read a variable first: the others are busy until then. What could not be removed shows when the instance
/// cannot be.
fn remove_triggers(files: &dyn Files, groups: &[String]) {
    let mut found = Vec::new();
    for group in groups {
        for name in files.list(&format!("{INSTANCE}/events/{group}")).unwrap_or_default() {
            let path = trigger(&format!("{group}/{name}"));
            // `enable` and `filter` are files beside the events' directories.
            let Ok(text) = files.read(&path) else { continue };
            let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            found.extend(lines.map(|line| (path.clone(), written(line).to_owned())));
        }
    }
    let (readers, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, text)| text.contains(":onmatch("));
    for (path, text) in readers.into_iter().chain(others) {
        let _ = files.write(&path, &format!("!{text}"));
    }
}

/// A line of a trigger file as it can be written: without ` [active]`.
fn written(line: &str) -> &str {
    match line.rsplit_once(" [") {
        Some((text, "active]" | "paused]")) => text,
        _ => line,
    }
}

fn is(cause: &io::Error, errno: Errno) -> bool {
    cause.raw_os_error() == Some(errno.raw_os_error())
}
