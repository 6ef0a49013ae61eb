//! The VFIO devices that processes have open.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use stelia_kernel::vfio::behind;

use crate::shared::kernel::Roots;

/// The addresses of the devices of these processes, of mediated ones the UUIDs. What may not be read is left out: only root may list the open files of a
/// VM's processes.
pub(crate) fn opened(roots: &Roots, pids: impl Iterator<Item = i32>) -> BTreeSet<String> {
    let numbers: BTreeSet<(u32, u32)> = pids.flat_map(|pid| open_devices(&roots.proc, pid)).collect();
    numbers
        .into_iter()
        .flat_map(|number| behind(&roots.sys, number))
        .collect()
}

/// The numbers of the character devices that a process has open.
fn open_devices(proc: &Path, pid: i32) -> Vec<(u32, u32)> {
    let open = fs::read_dir(proc.join(pid.to_string()).join("fd"));
    let open = open.into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| {
        // A descriptor on a file system of the pod's is not followed: its server may never answer.
        let is_device = fs::read_link(entry.path()).is_ok_and(|path| path.starts_with("/dev"));
        // O_PATH opens what the container is not allowed to use.
        let info = fs::read_to_string(proc.join(format!("{pid}/fdinfo")).join(entry.file_name())).unwrap_or_default();
        if !is_device || is_path_only(&info) {
            return None;
        }
        let file = fs::metadata(entry.path()).ok()?;
        let number = file.rdev();
        let parts = (rustix::fs::major(number), rustix::fs::minor(number));
        file.file_type().is_char_device().then_some(parts)
    });
    numbers.collect()
}

/// Whether a descriptor was opened with O_PATH: `flags` of its fdinfo, in octal (proc_pid_fdinfo(5)).
fn is_path_only(fdinfo: &str) -> bool {
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & rustix::fs::OFlags::PATH.bits() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_a_process_are_those_it_has_open() {
        let null = fs::File::open("/dev/null").unwrap();
        let number = null.metadata().unwrap().rdev();
        let open = open_devices(Path::new("/proc"), std::process::id().cast_signed());
        assert!(
            open.contains(&(rustix::fs::major(number), rustix::fs::minor(number))),
            "{open:?}"
        );
        assert!(open_devices(Path::new("/nowhere"), 1).is_empty());
    }
}
