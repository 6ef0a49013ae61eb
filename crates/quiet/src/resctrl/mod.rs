//! Caches and memory bandwidth by resctrl (Documentation/filesystems/resctrl.rst): VMs are counted, and belong to classes.
//!
//! CPUs are put into groups, not threads: a VM's CPUs are its own, so what runs on them is its vCPUs, from the first
//! instruction on. Its other threads, which float, are not counted and not limited.
//!
//! A class is a control group `stelia-NAME`, made when its first VM comes and removed with its last. A VM that is counted
//! has a monitoring group `stelia-UID` in it, or in the default group. Groups with other names are never touched, nor are
//! CPUs that are in one. What there is says itself whose it is, so nothing is kept of it elsewhere. resctrl is never mounted
//! from here.

mod counters;
#[cfg(test)]
mod fake;
mod groups;
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
use groups::{DEFAULT, GroupWriter, Groups, ROOT};

/// What is known of the machine since this process started.
#[derive(Debug, Default)]
pub struct Memory {
    caches: Caches,
}

/// A VM that is in groups of ours.
struct Member<'a> {
    pod: &'a str,
    /// Those that are online: resctrl takes no others.
    cpus: CpuSet,
    /// The name of its monitoring group.
    monitor: String,
    /// Its class and the name of that one's group; `None`: the default group.
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
/// A VM whose class cannot be had as it is defined stays in the default group, and a class that could not be set up
/// completely is removed: nothing is half done.
///
/// # Cost
/// Some reads a group, and one a counter of each cache that the VM has CPUs at.
pub fn carry_out(system: System<'_>, order: &Order, memory: &mut Memory, report: &mut Report) {
    let files = system.files;
    let groups = match groups::read(files) {
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
    let mut hand = GroupWriter { files, report };
    remove_unused(&mut hand, order, &groups, &members);
    settle_classes(&mut hand, order, &mut members);
    if order.cache_monitoring {
        move_monitors(&mut hand, &groups, &members);
    }
    let counted = order.cache_monitoring && counts(&mut hand, &groups, &members);
    for member in &members {
        let class = member.class.as_ref().map(|(class, _)| (*class).to_owned());
        let counted = counted.then(|| monitor(&mut hand, member)).flatten();
        if class.is_none() && counted.is_none() {
            continue;
        }
        let counted = counted.map(|path| counters::count(files, &path, &member.cpus, &mut memory.caches));
        let counted = counted.unwrap_or_default();
        let uses = CacheUse {
            class: class.unwrap_or_default(),
            llc_bytes: counted.llc_bytes,
            memory_bytes: counted.memory_bytes,
        };
        hand.report.caches.insert(member.pod.to_owned(), uses);
    }
}

fn is_wanted(order: &Order) -> bool {
    order.cache_monitoring || order.vms.values().any(|vm| vm.cache_class.is_some())
}

/// The VMs that are to be in groups of ours and may be.
fn members<'a>(order: &'a Order, groups: &Groups, report: &mut Report) -> Vec<Member<'a>> {
    let mut online = CpuSet::new();
    groups.values().for_each(|group| online.union_with(&group.cpus));
    let mut members = Vec::new();
    for (pod, vm) in &order.vms {
        let cpus = vm.cpus.intersection(&online);
        if cpus.is_empty() || !(order.cache_monitoring || vm.cache_class.is_some()) {
            continue;
        }
        let Some(monitor) = groups::ours(pod) else {
            problem(report, pod, "caches: this pod UID is not a name that a group can have");
            continue;
        };
        if let Some(foreign) = foreign(groups, &cpus) {
            let text = format!("caches: CPUs {cpus} are in resctrl's group {foreign:?}, which is another program's");
            problem(report, pod, text);
            continue;
        }
        let class = vm.cache_class.as_deref().and_then(|class| {
            let group = groups::ours(class).filter(|_| order.cache_classes.contains_key(class));
            if group.is_none() {
                left_out(report, pod, class, "the settings have no such class");
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

/// A group of another program's that has some of these CPUs.
fn foreign<'a>(groups: &'a Groups, cpus: &CpuSet) -> Option<&'a str> {
    groups.iter().find_map(|(name, group)| {
        let mine = name == DEFAULT || groups::is_ours(name);
        if !mine && !group.cpus.is_disjoint(cpus) {
            return Some(name.as_str());
        }
        let mut monitors = group.monitors.iter().flatten();
        let other = monitors.find(|(name, monitored)| !groups::is_ours(name) && !monitored.is_disjoint(cpus));
        other.map(|(name, _)| name.as_str())
    })
}

fn left_out(report: &mut Report, pod: &str, class: &str, why: &str) {
    let text = format!("cache class {class:?}: {why}; the VM stays in resctrl's default group");
    problem(report, pod, text);
}

/// Remove our groups that nobody is in any more, first of all: closids and RMIDs may be used up.
fn remove_unused(hand: &mut GroupWriter<'_>, order: &Order, groups: &Groups, members: &[Member<'_>]) {
    let classes: BTreeSet<&str> = members.iter().map(Member::group).collect();
    let monitors: BTreeSet<&str> = members.iter().map(|member| member.monitor.as_str()).collect();
    let mut unused = Vec::new();
    for (name, group) in groups {
        if groups::is_ours(name) && !classes.contains(name.as_str()) {
            unused.push(groups::path(name));
            continue;
        }
        for monitor in group.monitors.iter().flat_map(BTreeMap::keys) {
            let used = order.cache_monitoring && monitors.contains(monitor.as_str());
            if groups::is_ours(monitor) && !used {
                unused.push(groups::monitor_path(name, monitor));
            }
        }
    }
    for path in unused {
        if let Err(why) = hand.remove(&path) {
            problem(hand.report, "", format!("caches: {why}"));
        }
    }
}

/// Set up each class that has VMs. Those of a class that cannot be had are in the default group afterwards.
fn settle_classes(hand: &mut GroupWriter<'_>, order: &Order, members: &mut [Member<'_>]) {
    let mut wanted: BTreeMap<(&str, String), CpuSet> = BTreeMap::new();
    for member in members.iter() {
        if let Some(class) = &member.class {
            wanted.entry(class.clone()).or_default().union_with(&member.cpus);
        }
    }
    for ((class, group), cpus) in wanted {
        let path = groups::path(&group);
        let Err(why) = settle(hand, order, class, &path, &cpus) else {
            continue;
        };
        if let Err(why) = hand.remove(&path) {
            problem(hand.report, "", format!("caches: {why}"));
        }
        for member in members.iter_mut().filter(|member| member.group() == group) {
            member.class = None;
            left_out(hand.report, member.pod, class, &why);
        }
    }
}

/// The CPUs come last: they are limited by what is written before.
fn settle(hand: &mut GroupWriter<'_>, order: &Order, class: &str, path: &str, cpus: &CpuSet) -> Result<(), String> {
    let (schemata, default) = (format!("{path}/schemata"), hand.read(&format!("{ROOT}/schemata"))?);
    let hardware = groups::hardware(hand.files);
    let change = |now: &str| schemata::change(class, &order.cache_classes, hardware, now, &default);
    // What this machine cannot do is known before a group is made for it, again with each order.
    change(&default)?;
    hand.make(path)?;
    if let Some(lines) = change(&hand.read(&schemata)?)? {
        hand.write(&schemata, &lines)?;
    }
    hand.assign(path, cpus)
}

/// A monitoring group cannot follow its VM to another class in general: remove it where its VM is not, before the one is made
/// where it is, because RMIDs may be used up.
fn move_monitors(hand: &mut GroupWriter<'_>, groups: &Groups, members: &[Member<'_>]) {
    for member in members {
        let elsewhere = groups.iter().filter(|(name, group)| {
            let mut monitors = group.monitors.iter().flat_map(BTreeMap::keys);
            name.as_str() != member.group() && monitors.any(|monitor| *monitor == member.monitor)
        });
        let paths = elsewhere.map(|(name, _)| groups::monitor_path(name, &member.monitor));
        for path in paths.collect::<Vec<_>>() {
            if let Err(why) = hand.remove(&path) {
                problem(hand.report, member.pod, format!("caches: {why}"));
            }
        }
    }
}

/// Whether the hardware counts anything; said once where it does not.
fn counts(hand: &mut GroupWriter<'_>, groups: &Groups, members: &[Member<'_>]) -> bool {
    let counts = groups.get(DEFAULT).is_some_and(|default| default.monitors.is_some());
    if !counts && !members.is_empty() {
        problem(
            hand.report,
            "",
            format!("caches are not counted: {ROOT} has no mon_groups on this machine"),
        );
    }
    counts
}

/// The path of the VM's monitoring group, if it could be set up.
fn monitor(hand: &mut GroupWriter<'_>, member: &Member<'_>) -> Option<String> {
    let path = groups::monitor_path(member.group(), &member.monitor);
    let settled = hand.make(&path).and_then(|()| hand.assign(&path, &member.cpus));
    let Err(why) = settled else { return Some(path) };
    let removed = hand.remove(&path);
    problem(hand.report, member.pod, format!("caches are not counted: {why}"));
    if let Err(why) = removed {
        problem(hand.report, member.pod, format!("caches: {why}"));
    }
    None
}
