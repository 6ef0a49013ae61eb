//! Monitors and limits VMs' use of caches and memory bandwidth with resctrl (Documentation/filesystems/resctrl.rst).
//!
//! CPUs are put into groups, not threads: a VM's CPUs are its own, so its vCPUs run on them, from the first instruction on.
//! Its other threads, which float, are not counted and not limited.
//!
//! A class is a control group `stelia-NAME`, made for its first VM and removed with its last. A VM that is counted has a
//! monitoring group `stelia-UID` in it, or in the default group. Groups with other names are never touched, nor are CPUs that
//! are in one. The names tell which groups are ours, so there is no record. This program never mounts resctrl.

mod counters;
#[cfg(test)]
mod fake;
mod group_files;
mod schemata;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::quiet::{CacheUse, Report};
use stelia_cpus::CpuSet;

use crate::failure::problem;
use crate::files::System;
use crate::order::Order;
use counters::Caches;
use group_files::{DEFAULT, GroupWriter, Groups, ROOT};

/// The caches as this process has read them.
#[derive(Debug, Default)]
pub struct CacheHistory {
    caches: Caches,
}

/// A VM that belongs into a group of ours.
struct Member<'a> {
    pod: &'a str,
    /// Its online CPUs: resctrl takes no others.
    cpus: CpuSet,
    /// The name of its monitoring group.
    monitor: String,
    /// Its class and the name of the class's group; `None`: the default group.
    class: Option<(&'a str, String)>,
}

impl Member<'_> {
    /// The control group that it is in.
    fn group(&self) -> &str {
        self.class.as_ref().map_or(DEFAULT, |(_, group)| group)
    }
}

/// Put each VM into the groups that the order has, and report what they count.
///
/// A VM stays in the default group if its class cannot be set up as it is defined; a class that could only be set up in part
/// is removed.
///
/// # Cost
/// Some reads for each group, and one for each counter of the caches of its CPUs.
pub fn carry_out(system: System<'_>, order: &Order, memory: &mut CacheHistory, report: &mut Report) {
    let files = system.files;
    let groups = match group_files::read(files) {
        Ok(Some(groups)) => groups,
        Ok(None) => {
            if !order.vms.is_empty() && is_wanted(order) {
                let text = format!("caches: resctrl is not mounted at {ROOT} (mount -t resctrl resctrl {ROOT})");
                problem(report, "", text);
            }
            return;
        }
        Err(failure) => return problem(report, "", format!("caches: {failure}")),
    };
    let mut members = members(order, &groups, report);
    let mut writer = GroupWriter { files, report };
    remove_unused(&mut writer, order, &groups, &members);
    set_up_classes(&mut writer, order, &mut members);
    if order.cache_monitoring {
        remove_moved_monitors(&mut writer, &groups, &members);
    }
    let is_counted = order.cache_monitoring && check_monitoring(&mut writer, &groups, &members);
    for member in &members {
        let class = member.class.as_ref().map(|(class, _)| (*class).to_owned());
        let group = is_counted.then(|| set_up_monitor(&mut writer, member)).flatten();
        if class.is_none() && group.is_none() {
            continue;
        }
        let counted = group.map(|path| counters::count(files, &path, &member.cpus, &mut memory.caches));
        let counted = counted.unwrap_or_default();
        let uses = CacheUse {
            class: class.unwrap_or_default(),
            llc_bytes: counted.llc_bytes,
            memory_bytes: counted.memory_bytes,
        };
        writer.report.caches.insert(member.pod.to_owned(), uses);
    }
}

fn is_wanted(order: &Order) -> bool {
    order.cache_monitoring || order.vms.values().any(|vm| vm.cache_class.is_some())
}

/// The VMs that are to be in groups of ours, without those whose CPUs another program has put into its group.
fn members<'a>(order: &'a Order, groups: &Groups, report: &mut Report) -> Vec<Member<'a>> {
    let online: CpuSet = groups.values().flat_map(|group| group.cpus.iter()).collect();
    let mut members = Vec::new();
    for (pod, vm) in &order.vms {
        let cpus = vm.cpus.intersection(&online);
        if cpus.is_empty() || !(order.cache_monitoring || vm.cache_class.is_some()) {
            continue;
        }
        let Some(monitor) = group_files::own_group(pod) else {
            problem(report, pod, "caches: this pod UID is not a name that a group can have");
            continue;
        };
        if let Some(foreign) = foreign(groups, &cpus) {
            let text = format!("caches: CPUs {cpus} are in resctrl's group {foreign:?}, which is another program's");
            problem(report, pod, text);
            continue;
        }
        let class = vm.cache_class.as_deref().and_then(|class| {
            let group = group_files::own_group(class).filter(|_| order.cache_classes.contains_key(class));
            if group.is_none() {
                report_class(report, pod, class, "the settings have no such class");
            }
            Some((class, group?))
        });
        members.push(Member {
            pod,
            cpus,
            monitor,
            class,
        });
    }
    members
}

/// A group of another program that has some of these CPUs.
fn foreign<'a>(groups: &'a Groups, cpus: &CpuSet) -> Option<&'a str> {
    groups.iter().find_map(|(name, group)| {
        let is_own = name == DEFAULT || group_files::is_ours(name);
        if !is_own && !group.cpus.is_disjoint(cpus) {
            return Some(name.as_str());
        }
        let mut monitors = group.monitors.iter().flatten();
        let other = monitors.find(|(name, monitored)| !group_files::is_ours(name) && !monitored.is_disjoint(cpus));
        other.map(|(name, _)| name.as_str())
    })
}

fn report_class(report: &mut Report, pod: &str, class: &str, why: &str) {
    let text = format!("cache class {class:?}: {why}; the VM stays in resctrl's default group");
    problem(report, pod, text);
}

/// Remove our groups that have no VM any more. This comes first, because closids and RMIDs may be used up.
fn remove_unused(writer: &mut GroupWriter<'_>, order: &Order, groups: &Groups, members: &[Member<'_>]) {
    let classes: BTreeSet<&str> = members.iter().map(Member::group).collect();
    let monitors: BTreeSet<&str> = members.iter().map(|member| member.monitor.as_str()).collect();
    let mut unused = Vec::new();
    for (name, group) in groups {
        if group_files::is_ours(name) && !classes.contains(name.as_str()) {
            unused.push(group_files::path(name));
            continue;
        }
        for monitor in group.monitors.iter().flat_map(BTreeMap::keys) {
            let used = order.cache_monitoring && monitors.contains(monitor.as_str());
            if group_files::is_ours(monitor) && !used {
                unused.push(group_files::monitor_path(name, monitor));
            }
        }
    }
    for path in unused {
        if let Err(why) = writer.remove(&path) {
            problem(writer.report, "", format!("caches: {why}"));
        }
    }
}

/// Set up each class that has VMs. The VMs of a class that cannot be set up stay in the default group.
fn set_up_classes(writer: &mut GroupWriter<'_>, order: &Order, members: &mut [Member<'_>]) {
    let mut wanted: BTreeMap<(&str, String), CpuSet> = BTreeMap::new();
    for member in members.iter() {
        if let Some(class) = &member.class {
            wanted.entry(class.clone()).or_default().union_with(&member.cpus);
        }
    }
    for ((class, group), cpus) in wanted {
        let path = group_files::path(&group);
        let Err(why) = set_up_class(writer, order, class, &path, &cpus) else {
            continue;
        };
        if let Err(why) = writer.remove(&path) {
            problem(writer.report, "", format!("caches: {why}"));
        }
        for member in members.iter_mut().filter(|member| member.group() == group) {
            member.class = None;
            report_class(writer.report, member.pod, class, &why);
        }
    }
}

/// The CPUs are written last, when the limits are in force.
fn set_up_class(
    writer: &mut GroupWriter<'_>,
    order: &Order,
    class: &str,
    path: &str,
    cpus: &CpuSet,
) -> Result<(), String> {
    let (schemata, default) = (format!("{path}/schemata"), writer.read(&format!("{ROOT}/schemata"))?);
    let hardware = group_files::hardware(writer.files);
    let change = |now: &str| schemata::change(class, &order.cache_classes, hardware, now, &default);
    // This fails before a group is made, if the hardware cannot have the class.
    change(&default)?;
    writer.make(path)?;
    if let Some(lines) = change(&writer.read(&schemata)?)? {
        writer.write(&schemata, &lines)?;
    }
    writer.assign(path, cpus)
}

/// Remove monitoring groups of VMs whose class has changed: a monitoring group cannot be moved to another class in general.
/// This comes before the new group is made, because RMIDs may be used up.
fn remove_moved_monitors(writer: &mut GroupWriter<'_>, groups: &Groups, members: &[Member<'_>]) {
    for member in members {
        let elsewhere = groups.iter().filter(|(name, group)| {
            let mut monitors = group.monitors.iter().flat_map(BTreeMap::keys);
            name.as_str() != member.group() && monitors.any(|monitor| *monitor == member.monitor)
        });
        let paths = elsewhere.map(|(name, _)| group_files::monitor_path(name, &member.monitor));
        for path in paths.collect::<Vec<_>>() {
            if let Err(why) = writer.remove(&path) {
                problem(writer.report, member.pod, format!("caches: {why}"));
            }
        }
    }
}

/// Whether the hardware counts anything; reports a problem if it does not.
fn check_monitoring(writer: &mut GroupWriter<'_>, groups: &Groups, members: &[Member<'_>]) -> bool {
    let has_monitors = groups.get(DEFAULT).is_some_and(|default| default.monitors.is_some());
    if !has_monitors && !members.is_empty() {
        problem(
            writer.report,
            "",
            format!("caches are not counted: {ROOT} has no mon_groups on this machine"),
        );
    }
    has_monitors
}

/// Set up the VM's monitoring group; its path, or `None` if that failed.
fn set_up_monitor(writer: &mut GroupWriter<'_>, member: &Member<'_>) -> Option<String> {
    let path = group_files::monitor_path(member.group(), &member.monitor);
    let made = writer.make(&path).and_then(|()| writer.assign(&path, &member.cpus));
    let Err(why) = made else { return Some(path) };
    let removed = writer.remove(&path);
    problem(writer.report, member.pod, format!("caches are not counted: {why}"));
    if let Err(why) = removed {
        problem(writer.report, member.pod, format!("caches: {why}"));
    }
    None
}
