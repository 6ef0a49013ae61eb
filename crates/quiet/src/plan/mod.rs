//! Where an interrupt shall fire, and what a mask that was found says about who wrote it. Pure.
//!
//! For every interrupt, whichever VM came last: wanted = base − CPUs of all VMs. So nothing is kept for a VM, and the
//! order in which VMs come and go does not matter.

#[cfg(test)]
mod tests;

use stelia_cpus::CpuSet;

use crate::base::SavedMask;
use crate::order::{Order, Vm};

/// How many other places are tried for an interrupt when CPUs have no interrupt vector left.
const ALTERNATIVES: usize = 8;

/// The node's CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpus {
    pub online: CpuSet,
    /// The exclusive CPUs of all VMs.
    pub exclusive: CpuSet,
    pub shared: CpuSet,
}

/// What concerns one interrupt.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    /// CPUs of its NUMA node; empty: none.
    pub local: &'a CpuSet,
    /// The CPUs of the VM that has it for its own; `None`: as any other.
    pub own: Option<&'a CpuSet>,
}

/// What to do with one mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// To be kept before anything is written.
    pub kept: SavedMask,
    /// What the mask shall be. It differs from what was found where it has to be written.
    pub wanted: CpuSet,
}

impl Cpus {
    /// As an order has them. CPUs of VMs are not shared, whatever it says.
    pub fn of(order: &Order, online: CpuSet) -> Self {
        let mut exclusive = CpuSet::new();
        for vm in order.vms.values().filter(|_| order.steer) {
            exclusive.union_with(&vm.cpus);
        }
        Self {
            shared: order.shared.difference(&exclusive),
            online,
            exclusive,
        }
    }

    /// CPUs of VMs on which this interrupt disturbs.
    pub fn disturbed(&self, device: Device<'_>) -> CpuSet {
        device
            .own
            .map_or_else(|| self.exclusive.clone(), |own| self.exclusive.difference(own))
    }

    /// The base without CPUs of VMs. Where none of the others is online: the shared CPUs, of the device's node if it
    /// has some; then any that is no VM's; and if there is none, the base, because an interrupt has to fire
    /// somewhere.
    pub fn wanted(&self, base: &CpuSet, device: Device<'_>) -> CpuSet {
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

    /// Where an interrupt may go whose wanted place has no vector left: wide masks first, since the kernel takes any
    /// CPU of a mask that has one; then single CPUs, from another one for each interrupt, so that they spread.
    pub fn alternatives(&self, irq: u32, wanted: &CpuSet, device: Device<'_>) -> Vec<CpuSet> {
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
        masks.truncate(ALTERNATIVES);
        masks
    }

    /// What is no VM's: the shared CPUs that are online, or, if all those are offline, any other.
    fn pool(&self) -> CpuSet {
        let shared = self.shared.intersection(&self.online);
        if shared.is_empty() {
            self.online.difference(&self.exclusive)
        } else {
            shared
        }
    }

    /// Whether nobody has to be kept off a mask that another program wrote. A VM's own device stays on its CPUs.
    fn suits(&self, mask: &CpuSet, device: Device<'_>) -> bool {
        let right = match device.own {
            Some(own) => mask.is_subset(own),
            None => mask.is_disjoint(&self.exclusive),
        };
        right && !mask.is_disjoint(&self.online)
    }

    /// Whether the kernel itself replaced one of our masks: it does when the last CPU of a mask goes offline, by all
    /// CPUs that are online, and leaves it so when the CPU returns.
    fn widened_by_hotplug(&self, kept: &SavedMask, found: &CpuSet) -> bool {
        *found == self.online && kept.ours.iter().any(|mask| mask.is_disjoint(&self.online))
    }

    /// What the kernel makes of the default for a new interrupt (`irq_setup_affinity` in `kernel/irq/manage.c`).
    fn born(&self, default: &CpuSet, device: Device<'_>) -> CpuSet {
        let all = default.intersection(&self.online);
        let near = all.intersection(device.local);
        if near.is_empty() { all } else { near }
    }

    /// For an interrupt that is not in the record, found with the mask that our default gave it: the mask that it would
    /// have without us. Else it would stay off CPUs of VMs for ever, long after those have left.
    /// `None`: it is not found so.
    fn base_of_born(&self, found: &CpuSet, device: Device<'_>, default: Option<&SavedMask>) -> Option<CpuSet> {
        let ours = default.filter(|kept| kept.ours.iter().any(|mask| self.born(mask, device) == *found));
        ours.map(|kept| self.born(&kept.base, device))
    }

    /// What to do with an interrupt's mask. `kept` is what the record has of this very interrupt, `default` what it
    /// has of `default_smp_affinity`.
    ///
    /// A mask that is neither ours nor the base was written by somebody else, such as irqbalance or an administrator.
    /// If it keeps off CPUs of VMs, it stays, and is the base from then on, so it is not undone either. If not, it is
    /// repaired, and the base stays what it was.
    pub fn decide(
        &self,
        kept: Option<&SavedMask>,
        found: &CpuSet,
        device: Device<'_>,
        default: Option<&SavedMask>,
    ) -> Decision {
        let born = self.base_of_born(found, device, default);
        let base = match (kept, born) {
            (None, born) => born.unwrap_or_else(|| found.clone()),
            (Some(kept), _) if kept.ours.contains(found) || self.widened_by_hotplug(kept, found) => kept.base.clone(),
            // A driver freed it and requested it again, under the same name.
            (Some(kept), Some(born)) if kept.base != *found => born,
            (Some(kept), _) if kept.ours.is_empty() => found.clone(),
            (Some(_), _) if self.suits(found, device) => found.clone(),
            (Some(kept), _) => kept.base.clone(),
        };
        let wanted = self.wanted(&base, device);
        self.decided(kept, found, base, wanted)
    }

    /// As [`decide`](Self::decide), for `default_smp_affinity`. Programs such as CRI-O change single bits of what
    /// they find there: what they leave is the base, and with it those CPUs of VMs that were part of the base before,
    /// which they could not see.
    pub fn decide_default(&self, kept: Option<&SavedMask>, found: &CpuSet) -> Decision {
        let device = Device {
            local: &CpuSet::new(),
            own: None,
        };
        let base = match kept {
            Some(kept) if kept.ours.contains(found) => kept.base.clone(),
            Some(kept) if !kept.ours.is_empty() && self.suits(found, device) => {
                found.union(&kept.base.intersection(&self.exclusive))
            }
            Some(kept) if !kept.ours.is_empty() => kept.base.clone(),
            _ => found.clone(),
        };
        let wanted = self.wanted(&base, device);
        self.decided(kept, found, base, wanted)
    }

    /// What may be there by our doing from now on: what is there, if we wrote it, and what is wanted, unless it is
    /// the base.
    fn decided(&self, kept: Option<&SavedMask>, found: &CpuSet, base: CpuSet, wanted: CpuSet) -> Decision {
        let mut ours = Vec::new();
        if *found != base && kept.is_some_and(|kept| kept.ours.contains(found)) {
            ours.push(found.clone());
        }
        if wanted != base && !ours.contains(&wanted) {
            ours.push(wanted.clone());
        }
        Decision {
            kept: SavedMask { base, ours },
            wanted,
        }
    }
}

/// The pod and the VM whose own device an interrupt belongs to, by the device's PCI address.
pub fn owner<'a>(order: &'a Order, address: Option<&str>) -> Option<(&'a str, &'a Vm)> {
    let address = address.filter(|_| order.steer)?;
    let vms = order.vms.iter().map(|(pod, vm)| (pod.as_str(), vm));
    vms.into_iter().find(|(_, vm)| vm.own_devices.contains(address))
}
