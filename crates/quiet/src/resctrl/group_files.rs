//! Reads, makes, changes and removes resctrl's groups (Documentation/filesystems/resctrl.rst).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;

use super::schemata::{Bandwidth, CacheWays, Hardware};
use crate::failure::QuietFailure;
use crate::files::Files;

/// The directory at which every distribution mounts resctrl.
pub(super) const ROOT: &str = "/sys/fs/resctrl";

/// Prefix of the names of steliad's groups. Groups of other programs are never changed.
const GROUP_PREFIX: &str = "stelia-";

/// The default group's name in this program.
pub(super) const DEFAULT: &str = "";

/// A control group: it has a closid and a `schemata`.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) cpus: CpuSet,
    /// The CPUs of its monitoring groups; `None` where the hardware counts nothing.
    pub(super) monitors: Option<BTreeMap<String, CpuSet>>,
}

/// All control groups, by name.
pub(super) type Groups = BTreeMap<String, Group>;

/// The group's directory.
pub(super) fn path(group: &str) -> String {
    if group == DEFAULT {
        ROOT.into()
    } else {
        format!("{ROOT}/{group}")
    }
}

pub(super) fn monitor_path(group: &str, monitor: &str) -> String {
    format!("{}/mon_groups/{monitor}", path(group))
}

/// The name of our group for this class or pod; `None` if it could not be the name of a directory.
pub(super) fn own_group(name: &str) -> Option<String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = (1..=128).contains(&name.len()) && name.bytes().all(good);
    is_name.then(|| format!("{GROUP_PREFIX}{name}"))
}

pub(super) fn is_ours(group: &str) -> bool {
    group.starts_with(GROUP_PREFIX)
}

/// All groups; `None` if resctrl is not mounted.
///
/// # Errors
/// The system's. Then nothing may be changed, because other programs' groups are not known.
pub(super) fn read(files: &dyn Files) -> Result<Option<Groups>, QuietFailure> {
    let Some(default) = group(files, DEFAULT)? else {
        return Ok(None);
    };
    let mut groups = Groups::from([(DEFAULT.into(), default)]);
    for name in files.list(ROOT).map_err(QuietFailure::of("list", ROOT))? {
        if let Some(group) = group(files, &name)? {
            groups.insert(name, group);
        }
    }
    Ok(Some(groups))
}

/// `None` if this is not a group, such as `info` or a file, or does not exist.
fn group(files: &dyn Files, name: &str) -> Result<Option<Group>, QuietFailure> {
    let path = path(name);
    let Some(cpus) = cpus(files, &path)? else {
        return Ok(None);
    };
    let directory = format!("{path}/mon_groups");
    let monitors = match files.list(&directory) {
        Ok(names) => {
            let mut monitors = BTreeMap::new();
            for monitor in names {
                if let Some(cpus) = self::cpus(files, &monitor_path(name, &monitor))? {
                    monitors.insert(monitor, cpus);
                }
            }
            Some(monitors)
        }
        Err(cause) if is_missing(&cause) => None,
        Err(cause) => return Err(QuietFailure::of("list", &directory)(cause)),
    };
    Ok(Some(Group { cpus, monitors }))
}

/// The CPUs of a group's directory; `None` if it is not a group.
fn cpus(files: &dyn Files, path: &str) -> Result<Option<CpuSet>, QuietFailure> {
    let path = format!("{path}/cpus_list");
    match files.read(&path) {
        Ok(text) => {
            let bad = |_| QuietFailure::of("parse", &path)(ErrorKind::InvalidData.into());
            text.trim().parse().map(Some).map_err(bad)
        }
        Err(cause) if is_missing(&cause) => Ok(None),
        Err(cause) => Err(QuietFailure::of("read", &path)(cause)),
    }
}

fn is_missing(cause: &io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// What the hardware can allocate.
pub(super) fn hardware(files: &dyn Files) -> Hardware {
    let value = |file: &str, radix| {
        let text = files.read(&format!("{ROOT}/info/{file}")).ok()?;
        u64::from_str_radix(text.trim(), radix).ok()
    };
    let small = |file: &str| value(file, 10).and_then(|number| u32::try_from(number).ok());
    let ways = ["L3", "L3CODE"].iter().find_map(|resource| {
        Some(CacheWays {
            all: value(&format!("{resource}/cbm_mask"), 16)?,
            least: small(&format!("{resource}/min_cbm_bits"))?,
        })
    });
    let bandwidth = small("MB/min_bandwidth").zip(small("MB/bandwidth_gran"));
    let bandwidth = bandwidth.map(|(least, step)| Bandwidth { least, step });
    Hardware { ways, bandwidth }
}

/// Changes groups, and counts what it writes.
pub(super) struct GroupWriter<'a> {
    pub(super) files: &'a dyn Files,
    pub(super) report: &'a mut Report,
}

impl GroupWriter<'_> {
    /// Make the group unless it is there.
    ///
    /// # Errors
    /// Closids or RMIDs are used up (ENOSPC), an RMID still has lines in the cache (EBUSY), or another one of the system's.
    pub(super) fn make(&mut self, path: &str) -> Result<(), String> {
        if self.cpus(path)?.is_some() {
            return Ok(());
        }
        let made = self.with_writable_parent(path, || self.files.make_directory(path));
        made.map_err(|cause| self.explained(&QuietFailure::of("make", path)(cause)))?;
        self.report.writes += 1;
        Ok(())
    }

    /// The CPUs of a group; `None` if there is no such group.
    pub(super) fn cpus(&self, path: &str) -> Result<Option<CpuSet>, String> {
        cpus(self.files, path).map_err(|failure| failure.to_string())
    }

    /// Remove the group, which removes its monitoring groups too. Its CPUs return to the default group.
    pub(super) fn remove(&mut self, path: &str) -> Result<(), String> {
        match self.with_writable_parent(path, || self.files.remove_directory(path)) {
            Ok(()) => self.report.writes += 1,
            Err(cause) if is_missing(&cause) => {}
            Err(cause) => return Err(self.explained(&QuietFailure::of("remove", path)(cause))),
        }
        Ok(())
    }

    /// Make or remove a directory in one that its owner may not write to: resctrl's root and the `mon_groups` there have mode
    /// 0555 (`kernfs_create_root`), and this program has no CAP_DAC_OVERRIDE. The owner may change the mode, so the parent is
    /// made writable for the change.
    fn with_writable_parent(&self, path: &str, change: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let parent = path.rsplit_once('/').map_or(path, |(parent, _)| parent);
        match change() {
            Err(cause) if cause.kind() == ErrorKind::PermissionDenied => {
                let mode = self.files.mode(parent)?;
                if mode & 0o200 != 0 {
                    return Err(cause);
                }
                self.files.set_mode(parent, mode | 0o200)?;
                let changed = change();
                let restored = self.files.set_mode(parent, mode);
                changed.and(restored)
            }
            done => done,
        }
    }

    /// Give the group exactly these CPUs. The list is read first: a write to that of a control group takes CPUs from other
    /// groups, and empties all its monitoring groups even if the CPUs are the same.
    pub(super) fn assign(&mut self, path: &str, want: &CpuSet) -> Result<(), String> {
        if self.cpus(path)?.as_ref() == Some(want) {
            return Ok(());
        }
        self.write(&format!("{path}/cpus_list"), &want.to_string())
    }

    pub(super) fn write(&mut self, path: &str, value: &str) -> Result<(), String> {
        let written = self.files.write(path, value);
        written.map_err(|cause| self.explained(&QuietFailure::write(value, path)(cause)))?;
        self.report.writes += 1;
        Ok(())
    }

    pub(super) fn read(&self, path: &str) -> Result<String, String> {
        let text = self.files.read(path).map_err(QuietFailure::of("read", path));
        text.map_err(|failure| failure.to_string())
    }

    /// The failure with resctrl's own text about the last operation.
    fn explained(&self, failure: &QuietFailure) -> String {
        let status = self.files.read(&format!("{ROOT}/info/last_cmd_status"));
        match status.as_deref().map(str::trim) {
            Ok("ok" | "") | Err(_) => failure.to_string(),
            Ok(status) => format!("{failure} ({})", status.replace('\n', "; ")),
        }
    }
}
