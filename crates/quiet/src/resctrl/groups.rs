//! resctrl's groups: read, made, changed and removed (Documentation/filesystems/resctrl.rst).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;

use super::schemata::{Bandwidth, CacheWays, Hardware};
use crate::failure::Failure;
use crate::files::Files;

/// Where every distribution mounts it.
pub(super) const ROOT: &str = "/sys/fs/resctrl";

/// Prefix of the names of steliad's groups. Groups of other programs are never changed.
const GROUP_PREFIX: &str = "stelia-";

/// The default group's name here.
pub(super) const DEFAULT: &str = "";

/// A control group, which has closid and masks.
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

/// The name of our group for this class or pod; `None` where it would not be one name of a directory.
pub(super) fn ours(name: &str) -> Option<String> {
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
/// The system's. Then nothing is known of other programs' groups, and nothing may be changed.
pub(super) fn read(files: &dyn Files) -> Result<Option<Groups>, Failure> {
    let Some(default) = group(files, DEFAULT)? else {
        return Ok(None);
    };
    let mut groups = Groups::from([(DEFAULT.into(), default)]);
    for name in files.list(ROOT).map_err(Failure::of("list", ROOT))? {
        if let Some(group) = group(files, &name)? {
            groups.insert(name, group);
        }
    }
    Ok(Some(groups))
}

/// `None` where this is not a group: `info`, a file, or nothing at all.
fn group(files: &dyn Files, name: &str) -> Result<Option<Group>, Failure> {
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
        Err(cause) => return Err(Failure::of("list", &directory)(cause)),
    };
    Ok(Some(Group { cpus, monitors }))
}

/// The CPUs of a group's directory; `None` if it is not a group.
fn cpus(files: &dyn Files, path: &str) -> Result<Option<CpuSet>, Failure> {
    let path = format!("{path}/cpus_list");
    match files.read(&path) {
        Ok(text) => {
            let bad = |_| Failure::of("parse", &path)(ErrorKind::InvalidData.into());
            text.trim().parse().map(Some).map_err(bad)
        }
        Err(cause) if is_missing(&cause) => Ok(None),
        Err(cause) => Err(Failure::of("read", &path)(cause)),
    }
}

fn is_missing(cause: &io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// What can be allocated.
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
        let made = self.in_writable(path, || self.files.make_directory(path));
        made.map_err(|cause| self.said(&Failure::of("make", path)(cause)))?;
        self.report.writes += 1;
        Ok(())
    }

    /// The CPUs of a group; `None` where there is none.
    pub(super) fn cpus(&self, path: &str) -> Result<Option<CpuSet>, String> {
        cpus(self.files, path).map_err(|failure| failure.to_string())
    }

    /// Its CPUs and, without a word, its monitoring groups go.
    pub(super) fn remove(&mut self, path: &str) -> Result<(), String> {
        match self.in_writable(path, || self.files.remove_directory(path)) {
            Ok(()) => self.report.writes += 1,
            Err(cause) if is_missing(&cause) => {}
            Err(cause) => return Err(self.said(&Failure::of("remove", path)(cause))),
        }
        Ok(())
    }

    /// Do it in a directory that its owner may not write to: resctrl's root and the `mon_groups` there have mode 0555
    /// (`kernfs_create_root`), which stops whoever has no CAP_DAC_OVERRIDE. The owner may change the mode, so it is writable
    /// for as long as this takes, and is as before afterwards.
    fn in_writable(&self, path: &str, change: impl Fn() -> io::Result<()>) -> io::Result<()> {
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

    /// Give the group exactly these CPUs. They are read just before: a write of a control group's takes CPUs from other
    /// groups, and empties all its monitoring groups even where it has the CPUs already.
    pub(super) fn assign(&mut self, path: &str, want: &CpuSet) -> Result<(), String> {
        if self.cpus(path)?.as_ref() == Some(want) {
            return Ok(());
        }
        self.write(&format!("{path}/cpus_list"), &want.to_string())
    }

    pub(super) fn write(&mut self, path: &str, value: &str) -> Result<(), String> {
        let written = self.files.write(path, value);
        written.map_err(|cause| self.said(&Failure::write(value, path)(cause)))?;
        self.report.writes += 1;
        Ok(())
    }

    pub(super) fn read(&self, path: &str) -> Result<String, String> {
        let text = self.files.read(path).map_err(Failure::of("read", path));
        text.map_err(|failure| failure.to_string())
    }

    /// With resctrl's own words for it, which are of the last operation.
    fn said(&self, failure: &Failure) -> String {
        let status = self.files.read(&format!("{ROOT}/info/last_cmd_status"));
        match status.as_deref().map(str::trim) {
            Ok("ok" | "") | Err(_) => failure.to_string(),
            Ok(status) => format!("{failure} ({})", status.replace('\n', "; ")),
        }
    }
}
