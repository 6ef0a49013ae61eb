//! Decides where an interrupt shall fire, and which program wrote the mask that it has. Pure.
//!
//! For every interrupt: wanted = base − CPUs of all VMs. So nothing is recorded for a VM, and the order in which VMs come
//! and go does not matter.

#[cfg(test)]
mod tests;

use stelia_cpus::CpuSet;

use super::saved_masks::SavedMask;
use crate::order::{Order, OrderedVm};

/// Limit of the other masks that are tried for an interrupt if no vector is left on the wanted CPUs.
const MAX_ALTERNATIVES: usize = 8;

/// The node's CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpus {
    pub online: CpuSet,
    /// The exclusive CPUs of all VMs.
    pub exclusive: CpuSet,
    pub shared: CpuSet,
}

/// What the decision depends on of the interrupt's device.
#[derive(Debug, Clone, Copy)]
pub struct InterruptDevice<'a> {
    /// CPUs of its NUMA node; empty: none.
    pub local: &'a CpuSet,
    /// The CPUs of the VM whose own device it is; `None`: it is no VM's own.
    pub own: Option<&'a CpuSet>,
}

/// What to do with one mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// To be saved before anything is written.
    pub saved: SavedMask,
    /// The mask to set, if the interrupt has another one.
    pub wanted: CpuSet,
}

impl Cpus {
    /// The CPUs that the order names. CPUs of VMs are not shared, whatever it says.
    pub fn new(order: &Order, online: CpuSet) -> Self {
        let vms = order.vms.values().filter(|_| order.steer);
        let exclusive: CpuSet = vms.flat_map(|vm| vm.cpus.iter()).collect();
        Self {
            shared: order.shared.difference(&exclusive),
            online,
            exclusive,
        }
    }

    /// The CPUs of VMs that this interrupt must leave.
    pub fn disturbed(&self, device: InterruptDevice<'_>) -> CpuSet {
        device
            .own
            .map_or_else(|| self.exclusive.clone(), |own| self.exclusive.difference(own))
    }

    /// The base without CPUs of VMs. Where none of the others is online: the shared CPUs, of the device's node if it
    /// has some; then any that is no VM's; and if there is none, the base, because an interrupt has to fire
    /// somewhere.
    pub fn wanted(&self, base: &CpuSet, device: InterruptDevice<'_>) -> CpuSet {
        let own = device.own.filter(|own| !own.is_disjoint(&self.online));
        let rest = base.difference(&self.exclusive);
        let pool = self.pool();
        let local = pool.intersection(device.local);
        let places = [&rest, &local, &pool, base].into_iter();
        let mut possible = own
            .into_iter()
            .chain(places)
            .filter(|mask| !mask.is_disjoint(&self.online));
        possible.next().unwrap_or(&self.online).clone()
    }

    /// Other masks for an interrupt for which no vector is left on the wanted CPUs: wide masks first, since the kernel takes
    /// any CPU of a mask that has one; then single CPUs, from another one for each interrupt, so that they spread.
    pub fn alternatives(&self, irq: u32, wanted: &CpuSet, device: InterruptDevice<'_>) -> Vec<CpuSet> {
        let pool = self.pool();
        let wide = match device.own {
            Some(own) => vec![own.intersection(&self.online)],
            None => vec![
                pool.intersection(device.local),
                pool.clone(),
                self.online.difference(&self.exclusive),
            ],
        };
        let singles: Vec<u32> = wide[0].iter().chain(pool.difference(&wide[0]).iter()).collect();
        let turn = irq as usize % singles.len().max(1);
        let turned = singles[turn..].iter().chain(&singles[..turn]);
        let mut masks = Vec::new();
        for mask in wide.into_iter().chain(turned.map(|cpu| CpuSet::from_iter([*cpu]))) {
            if !mask.is_empty() && mask != *wanted && !masks.contains(&mask) {
                masks.push(mask);
            }
        }
        masks.truncate(MAX_ALTERNATIVES);
        masks
    }

    /// The online shared CPUs or, if all of them are offline, all online CPUs that are no VM's.
    fn pool(&self) -> CpuSet {
        let shared = self.shared.intersection(&self.online);
        if shared.is_empty() {
            self.online.difference(&self.exclusive)
        } else {
            shared
        }
    }

    /// Whether a mask that another program wrote may stay: it has no CPUs of VMs or, for a VM's own device, only that VM's.
    fn may_stay(&self, mask: &CpuSet, device: InterruptDevice<'_>) -> bool {
        let leaves_vms = match device.own {
            Some(own) => mask.is_subset(own),
            None => mask.is_disjoint(&self.exclusive),
        };
        leaves_vms && !mask.is_disjoint(&self.online)
    }

    /// Whether the kernel itself replaced one of our masks: it does when the last CPU of a mask goes offline, by all
    /// CPUs that are online, and leaves it so when the CPU returns.
    fn widened_by_hotplug(&self, saved: &SavedMask, found: &CpuSet) -> bool {
        *found == self.online && saved.ours.iter().any(|mask| mask.is_disjoint(&self.online))
    }

    /// What the kernel makes of the default for a new interrupt (`irq_setup_affinity` in `kernel/irq/manage.c`).
    fn initial_mask(&self, default: &CpuSet, device: InterruptDevice<'_>) -> CpuSet {
        let all = default.intersection(&self.online);
        let near = all.intersection(device.local);
        if near.is_empty() { all } else { near }
    }

    /// The base of a new interrupt that still has the mask which the changed default gave it: the mask that it would have
    /// got from the default's base. Otherwise it would stay off the CPUs of VMs after those have ended.
    /// `None`: it has another mask.
    fn base_of_new(&self, found: &CpuSet, device: InterruptDevice<'_>, default: Option<&SavedMask>) -> Option<CpuSet> {
        let ours = default.filter(|saved| saved.ours.iter().any(|mask| self.initial_mask(mask, device) == *found));
        ours.map(|saved| self.initial_mask(&saved.base, device))
    }

    /// What to do with an interrupt's mask. `saved` and `default` are the record's entries of this interrupt and of
    /// `default_smp_affinity`.
    ///
    /// A mask that is neither ours nor the base was written by another program, such as irqbalance, or by an administrator.
    /// If it has no CPUs of VMs, it stays, and is the base from then on, so it is not undone either. If it has some, it is
    /// repaired, and the base stays what it was.
    pub fn decide(
        &self,
        saved: Option<&SavedMask>,
        found: &CpuSet,
        device: InterruptDevice<'_>,
        default: Option<&SavedMask>,
    ) -> Decision {
        let new = self.base_of_new(found, device, default);
        let base = match (saved, new) {
            (None, new) => new.unwrap_or_else(|| found.clone()),
            (Some(saved), _) if saved.ours.contains(found) || self.widened_by_hotplug(saved, found) => {
                saved.base.clone()
            }
            // A driver freed it and requested it again, under the same name.
            (Some(saved), Some(new)) if saved.base != *found => new,
            (Some(saved), _) if saved.ours.is_empty() => found.clone(),
            (Some(_), _) if self.may_stay(found, device) => found.clone(),
            (Some(saved), _) => saved.base.clone(),
        };
        let wanted = self.wanted(&base, device);
        self.decision(saved, found, base, wanted)
    }

    /// As [`decide`](Self::decide), for `default_smp_affinity`. Programs such as CRI-O change single bits of what
    /// they find there: what they leave is the base, and with it those CPUs of VMs that were part of the base before,
    /// which they could not see.
    pub fn decide_default(&self, saved: Option<&SavedMask>, found: &CpuSet) -> Decision {
        let device = InterruptDevice {
            local: &CpuSet::new(),
            own: None,
        };
        let base = match saved {
            Some(saved) if saved.ours.contains(found) => saved.base.clone(),
            Some(saved) if !saved.ours.is_empty() && self.may_stay(found, device) => {
                found.union(&saved.base.intersection(&self.exclusive))
            }
            Some(saved) if !saved.ours.is_empty() => saved.base.clone(),
            _ => found.clone(),
        };
        let wanted = self.wanted(&base, device);
        self.decision(saved, found, base, wanted)
    }

    /// The masks in force that may be ours from now on are the present one, if we wrote it, and the wanted one, unless it is
    /// the base.
    fn decision(&self, saved: Option<&SavedMask>, found: &CpuSet, base: CpuSet, wanted: CpuSet) -> Decision {
        let mut ours = Vec::new();
        if *found != base && saved.is_some_and(|saved| saved.ours.contains(found)) {
            ours.push(found.clone());
        }
        if wanted != base && !ours.contains(&wanted) {
            ours.push(wanted.clone());
        }
        Decision {
            saved: SavedMask { base, ours },
            wanted,
        }
    }
}

/// The pod and the VM whose own device an interrupt belongs to, by the device's PCI address.
pub fn owner<'a>(order: &'a Order, address: Option<&str>) -> Option<(&'a str, &'a OrderedVm)> {
    let address = address.filter(|_| order.steer)?;
    let vms = order.vms.iter().map(|(pod, vm)| (pod.as_str(), vm));
    vms.into_iter().find(|(_, vm)| vm.own_devices.contains(address))
}
