//! Remembers the changes in force for each VM. They stay in force if an order does not match the VM's record: while a running VM gets or
//! loses CPUs, order and record differ for a moment.

#[cfg(test)]
mod tests;

use crate::failure::QuietFailure;
use crate::files::Store;
use crate::order::{Order, OrderedVm};
use crate::store_json;
use stelia_cpus::CpuSet;

use crate::service::check_order::{Checked, OrderFacts};

/// The record's name in the store.
const NAME: &str = "in-force.json";

/// The VMs of the last order that was carried out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InForce(Order);

impl InForce {
    /// The state after this order was carried out.
    pub fn of(order: &Order) -> Self {
        if order.vms.is_empty() {
            return Self::default();
        }
        Self(Order {
            vms: order.vms.clone(),
            cache_classes: order.cache_classes.clone(),
            ..Order::default()
        })
    }

    /// The saved state. If it cannot be read it is empty, and the changes for VMs that are left out are undone.
    pub fn load(store: &dyn Store) -> Self {
        Self(store_json::load(store, NAME).unwrap_or_default())
    }

    pub(crate) fn save(&self, store: &dyn Store) -> Result<(), QuietFailure> {
        store_json::save(store, NAME, &self.0)
    }

    /// Put each live VM that was left out back into the order, with the changes in force for it. They stay on those CPUs that no other VM
    /// has and that are still recorded for it or, if its record cannot be read, that the order does not have as shared.
    pub fn retain(&self, checked: &mut Checked, facts: &OrderFacts) {
        let Checked { order, left_out } = checked;
        let mut others: CpuSet = order.vms.values().flat_map(|vm| vm.cpus.iter()).collect();
        for (pod, reason) in left_out {
            let (Some(recorded), Some(vm)) = (facts.recorded.get(pod), self.0.vms.get(pod)) else {
                continue;
            };
            let cpus = vm.cpus.difference(&others);
            let cpus = match recorded {
                Ok(recorded) => cpus.intersection(recorded),
                Err(_) => cpus.difference(&order.shared),
            };
            if cpus.is_empty() {
                continue;
            }
            if let Some(class) = &vm.cache_class
                && let Some(limits) = self.0.cache_classes.get(class)
            {
                order
                    .cache_classes
                    .entry(class.clone())
                    .or_insert_with(|| limits.clone());
            }
            others.union_with(&cpus);
            *reason += &format!("; what is in force for it on CPUs {cpus} stays");
            let vm = OrderedVm { cpus, ..vm.clone() };
            order.vms.insert(pod.clone(), vm);
        }
        order.shared = order.shared.difference(&others);
    }
}
