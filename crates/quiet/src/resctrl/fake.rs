//! resctrl's file system in memory, with the kernel's rules (fs/resctrl/rdtgroup.c, ctrlmondata.c).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use stelia_cpus::CpuSet;

use crate::files::{Files, Store};
pub(super) use crate::testing::set as cpus;

const EACCES: i32 = 13;
const ENOTDIR: i32 = 20;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;

const ROOT: &str = "/sys/fs/resctrl";
const FILES: [&str; 6] = ["cpus", "cpus_list", "mode", "schemata", "size", "tasks"];

#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) cpus: CpuSet,
    pub(super) masks: BTreeMap<u32, u64>,
    pub(super) bandwidth: BTreeMap<u32, u32>,
    pub(super) monitors: BTreeMap<String, CpuSet>,
}

pub(super) struct State {
    pub(super) mounted: bool,
    pub(super) counts: bool,
    pub(super) closids: usize,
    pub(super) rmids: usize,
    /// Ways that a group of another program has exclusively.
    pub(super) exclusive: u64,
    /// 100, or the greatest value of another unit.
    pub(super) full_bandwidth: u32,
    /// By control group; the default group is "".
    pub(super) groups: BTreeMap<String, Group>,
    /// Modes of directories that are not writable: the caller has no capability to override them.
    pub(super) modes: BTreeMap<String, u32>,
    /// By the end of a counter's path: what is read in place of a number.
    pub(super) words: BTreeMap<String, String>,
    status: String,
    pub(super) writes: Vec<String>,
}

/// 16 CPUs, each eight of which have a cache of 11 ways.
pub(super) struct Resctrl(pub(super) RefCell<State>);

impl Resctrl {
    pub(super) fn new() -> Self {
        let state = State {
            mounted: true,
            counts: true,
            closids: 4,
            rmids: 16,
            exclusive: 0,
            full_bandwidth: 100,
            groups: BTreeMap::new(),
            modes: [ROOT.to_owned(), format!("{ROOT}/mon_groups")]
                .map(|path| (path, 0o555))
                .into(),
            words: BTreeMap::new(),
            status: "ok".into(),
            writes: Vec::new(),
        };
        let fake = Self(RefCell::new(state));
        fake.0.borrow_mut().insert("");
        fake.0.borrow_mut().groups.get_mut("").unwrap().cpus = CpuSet::below(16);
        fake
    }

    /// Whether a name may be made or removed.
    fn writable(&self, path: &str) -> io::Result<()> {
        let mode = self.mode(path.rsplit_once('/').unwrap().0)?;
        match mode & 0o200 {
            0 => Err(io::Error::from_raw_os_error(EACCES)),
            _ => Ok(()),
        }
    }

    /// Another program's, which may do anything, makes a group.
    pub(super) fn foreign(&self, name: &str) {
        let modes = std::mem::take(&mut self.0.borrow_mut().modes);
        self.make_directory(&format!("{ROOT}/{name}")).unwrap();
        self.0.borrow_mut().modes = modes;
    }

    pub(super) fn group(&self, name: &str) -> Group {
        self.0.borrow().groups[name].clone()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.borrow().groups.keys().cloned().collect()
    }

    /// The monitoring groups of a control group, each with its CPUs.
    pub(super) fn monitors(&self, group: &str) -> Vec<String> {
        let monitors = self.group(group).monitors.into_iter();
        monitors.map(|(name, cpus)| format!("{name} {cpus}")).collect()
    }
}

/// Where a path is: a control group, a monitoring group of it, and the rest.
fn split(path: &str) -> Option<(String, Option<String>, String)> {
    let rest = path.strip_prefix(ROOT)?.trim_start_matches('/');
    let mut parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    let own = [["info", "mon_data", "mon_groups"].as_slice(), &FILES].concat();
    let group = match parts.first() {
        Some(first) if !own.contains(first) => parts.remove(0).to_owned(),
        _ => String::new(),
    };
    let monitor = (parts.len() > 1 && parts[0] == "mon_groups").then(|| parts[1].to_owned());
    let rest = if monitor.is_some() { parts.split_off(2) } else { parts };
    Some((group, monitor, rest.join("/")))
}

impl State {
    fn insert(&mut self, name: &str) {
        let group = Group {
            cpus: CpuSet::new(),
            masks: [(0, 0x7ff & !self.exclusive), (1, 0x7ff & !self.exclusive)].into(),
            bandwidth: [(0, self.full_bandwidth), (1, self.full_bandwidth)].into(),
            monitors: BTreeMap::new(),
        };
        self.groups.insert(name.into(), group);
    }

    fn rmids_used(&self) -> usize {
        self.groups.values().map(|group| 1 + group.monitors.len()).sum()
    }

    fn refuse(&mut self, status: &str, number: i32) -> io::Error {
        self.status = status.into();
        io::Error::from_raw_os_error(number)
    }

    fn cpus_mut(&mut self, group: &str, monitor: Option<&String>) -> io::Result<&mut CpuSet> {
        let group = self.groups.get_mut(group).ok_or(ErrorKind::NotFound)?;
        match monitor {
            Some(name) => group.monitors.get_mut(name).ok_or_else(|| ErrorKind::NotFound.into()),
            None => Ok(&mut group.cpus),
        }
    }

    fn assign(&mut self, group: &str, monitor: Option<&String>, want: CpuSet) -> io::Result<()> {
        let now = self.cpus_mut(group, monitor)?.clone();
        if !want.is_subset(&CpuSet::below(16)) {
            return Err(self.refuse("Can only assign online CPUs", EINVAL));
        }
        if let Some(monitor) = monitor {
            let parent = self.groups.get_mut(group).unwrap();
            if !want.is_subset(&parent.cpus) {
                return Err(self.refuse("Can only add CPUs to mongroup that belong to parent", EINVAL));
            }
            for (name, cpus) in &mut parent.monitors {
                *cpus = if name == monitor {
                    want.clone()
                } else {
                    cpus.difference(&want)
                };
            }
            return Ok(());
        }
        if group.is_empty() {
            return Err(self.refuse("Can't drop CPUs from default group", EINVAL));
        }
        self.groups.get_mut("").unwrap().cpus.union_with(&now.difference(&want));
        for (name, other) in &mut self.groups {
            if name == group {
                other.cpus = want.clone();
                // Also where nothing changes.
                other.monitors.values_mut().for_each(|cpus| *cpus = CpuSet::new());
                continue;
            }
            other.cpus = other.cpus.difference(&want);
            other
                .monitors
                .values_mut()
                .for_each(|cpus| *cpus = cpus.difference(&want));
        }
        Ok(())
    }

    fn schemata(&self, group: &Group) -> String {
        let masks: Vec<String> = group
            .masks
            .iter()
            .map(|(id, mask)| format!("{id}={mask:03x}"))
            .collect();
        let shares: Vec<String> = group
            .bandwidth
            .iter()
            .map(|(id, share)| format!("{id}={share:>4}"))
            .collect();
        format!("    MB:{}\n    L3:{}\n", shares.join(";"), masks.join(";"))
    }

    /// All lines are checked before any is in force.
    fn set_schemata(&mut self, name: &str, text: &str) -> io::Result<()> {
        let mut group = self.groups.get(name).ok_or(ErrorKind::NotFound)?.clone();
        for line in text.lines() {
            let (resource, domains) = line.split_once(':').unwrap();
            for domain in domains.split(';') {
                let (id, value) = domain.split_once('=').unwrap();
                let id: u32 = id.parse().unwrap();
                if resource == "L3" {
                    let mask = u64::from_str_radix(value, 16).unwrap();
                    let row = mask >> mask.trailing_zeros().min(63);
                    if mask == 0 || mask & !0x7ff != 0 || row & (row + 1) != 0 || mask.count_ones() < 2 {
                        return Err(self.refuse("Need a valid mask", EINVAL));
                    }
                    if mask & self.exclusive != 0 {
                        return Err(self.refuse("Overlaps with exclusive group", EINVAL));
                    }
                    *group.masks.get_mut(&id).unwrap() = mask;
                } else {
                    let share: u32 = value.parse().unwrap();
                    if !(10..=self.full_bandwidth).contains(&share) {
                        return Err(self.refuse("MB value out of range", EINVAL));
                    }
                    *group.bandwidth.get_mut(&id).unwrap() = share.next_multiple_of(10);
                }
            }
        }
        self.groups.insert(name.into(), group);
        Ok(())
    }
}

impl Files for Resctrl {
    fn read(&self, path: &str) -> io::Result<String> {
        if let Some(rest) = path.strip_prefix("/sys/devices/system/cpu/cpu") {
            let cpu: u32 = rest.split('/').next().unwrap().parse().unwrap();
            return match rest.split_once("/cache/").unwrap().1 {
                "index2/level" => Ok("2\n".into()),
                "index3/level" => Ok("3\n".into()),
                "index3/id" => Ok(format!("{}\n", cpu / 8)),
                _ => Err(ErrorKind::NotFound.into()),
            };
        }
        let state = self.0.borrow();
        let (name, monitor, rest) = split(path).unwrap();
        if !state.mounted {
            return Err(ErrorKind::NotFound.into());
        }
        let info = match rest.as_str() {
            "info/L3/cbm_mask" => Some("7ff"),
            "info/L3/min_cbm_bits" => Some("2"),
            "info/MB/min_bandwidth" | "info/MB/bandwidth_gran" => Some("10"),
            "info/last_cmd_status" => Some(state.status.as_str()),
            // A file as if it were a directory.
            _ if rest.split('/').count() > 1 && FILES.contains(&rest.split('/').next().unwrap()) => {
                return Err(io::Error::from_raw_os_error(ENOTDIR));
            }
            _ => None,
        };
        if let Some(text) = info {
            return Ok(format!("{text}\n"));
        }
        let group = state.groups.get(&name).ok_or(ErrorKind::NotFound)?;
        let counter = rest.starts_with("mon_data/mon_L3_") && state.counts;
        if counter && let Some((_, word)) = state.words.iter().find(|(end, _)| path.ends_with(end.as_str())) {
            return Ok(format!("{word}\n"));
        }
        let cpus = match &monitor {
            Some(name) => group.monitors.get(name).ok_or(ErrorKind::NotFound)?,
            None => &group.cpus,
        };
        match rest.as_str() {
            "cpus_list" => Ok(format!("{cpus}\n")),
            "schemata" if monitor.is_none() => Ok(state.schemata(group)),
            _ if counter && rest.ends_with("llc_occupancy") => Ok("4096\n".into()),
            _ if counter && rest.ends_with("mbm_total_bytes") => Ok("1000000\n".into()),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        let (name, monitor, rest) = split(path).unwrap();
        state.status = "ok".into();
        match rest.as_str() {
            "cpus_list" => state.assign(&name, monitor.as_ref(), cpus(value))?,
            "schemata" => state.set_schemata(&name, value)?,
            other => panic!("{other}"),
        }
        state.writes.push(path.into());
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let state = self.0.borrow();
        let (name, monitor, rest) = split(path).unwrap();
        let group = state
            .groups
            .get(&name)
            .filter(|_| state.mounted)
            .ok_or(ErrorKind::NotFound)?;
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Ok(match (rest.as_str(), monitor) {
            ("", None) if name.is_empty() => {
                let groups = state.groups.keys().filter(|name| !name.is_empty()).cloned();
                groups
                    .chain(own(&["info", "mon_data", "mon_groups"]))
                    .chain(own(&FILES))
                    .collect()
            }
            ("mon_groups", None) if state.counts => group.monitors.keys().cloned().collect(),
            ("mon_data", _) if state.counts => own(&["mon_L3_00", "mon_L3_01"]),
            _ => return Err(ErrorKind::NotFound.into()),
        })
    }

    fn link(&self, path: &str) -> io::Result<String> {
        panic!("{path}")
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        Ok(self.0.borrow().modes.get(path).copied().unwrap_or(0o755))
    }

    fn set_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        self.0.borrow_mut().modes.insert(path.into(), mode);
        Ok(())
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        self.writable(path)?;
        let mut state = self.0.borrow_mut();
        let (name, monitor, rest) = split(path).unwrap();
        assert_eq!(rest, "", "{path}");
        if let Some(monitor) = monitor {
            if !state.groups.contains_key(&name) || !state.counts {
                return Err(ErrorKind::NotFound.into());
            }
            if state.rmids_used() == state.rmids {
                return Err(state.refuse("Out of RMIDs", ENOSPC));
            }
            let group = state.groups.get_mut(&name).unwrap();
            assert!(group.monitors.insert(monitor, CpuSet::new()).is_none(), "{path}");
        } else {
            assert!(!state.groups.contains_key(&name), "{path}");
            if state.groups.len() == state.closids {
                return Err(state.refuse("Out of CLOSIDs", ENOSPC));
            }
            if state.rmids_used() == state.rmids {
                return Err(state.refuse("Out of RMIDs", ENOSPC));
            }
            state.insert(&name);
        }
        state.writes.push(path.into());
        Ok(())
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        let mut state = self.writable(path).map(|()| self.0.borrow_mut())?;
        let (name, monitor, _) = split(path).unwrap();
        let group = state.groups.get_mut(&name).ok_or(ErrorKind::NotFound)?;
        if let Some(monitor) = monitor {
            group.monitors.remove(&monitor).ok_or(ErrorKind::NotFound)?;
        } else {
            let cpus = group.cpus.clone();
            state.groups.remove(&name);
            state.groups.get_mut("").unwrap().cpus.union_with(&cpus);
        }
        state.writes.push(path.into());
        Ok(())
    }
}

/// resctrl needs none.
impl Store for Resctrl {
    fn load(&self, name: &str) -> io::Result<Option<String>> {
        panic!("{name}")
    }

    fn save(&self, name: &str, _: &str) -> io::Result<()> {
        panic!("{name}")
    }
}
