//! What is in force for each VM, so that it stays where an order cannot be compared with the VM's record: while CPUs are given to it or
//! taken from it the order and the record differ for a moment, and the VM runs.

#[cfg(test)]
mod tests;

use stelia_cpus::CpuSet;
use stelia_quiet::files::Store;
use stelia_quiet::order::{Order, Vm};

use crate::check::{Checked, Facts};

/// The name in the store.
const NAME: &str = "in-force.json";

/// The last order that was carried out, as far as it is about VMs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InForce(Order);

impl InForce {
    /// The state that an order which was carried out leaves.
    pub fn of(order: &Order) -> Self {
        match order.vms.is_empty() {
            true => Self::default(),
            false => Self(Order {
                vms: order.vms.clone(),
                cache_classes: order.cache_classes.clone(),
                ..Order::default()
            }),
        }
    }

    /// What is kept. Where that cannot be read nothing is known to be in force: a VM that is left out is restored then.
    pub fn load(store: &dyn Store) -> Self {
        let text = store.load(NAME).ok().flatten();
        Self(
            text.and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default(),
        )
    }

    /// # Errors
    /// With the name and the cause.
    pub fn save(&self, store: &dyn Store) -> Result<(), String> {
        // Names and numbers: they cannot fail to be JSON.
        let text = serde_json::to_string(&self.0).unwrap_or_default();
        store.save(NAME, &text).map_err(|cause| format!("save {NAME}: {cause}"))
    }

    /// Put each VM that was left out although it is alive back into the order, with what is in force for it, on those of its CPUs that
    /// are no other VM's and still are recorded as its own. Where its record cannot be read: on those that the order does not call shared.
    pub fn keep(&self, checked: &mut Checked, facts: &Facts) {
        let Checked { order, left_out } = checked;
        let mut others = CpuSet::new();
        order.vms.values().for_each(|vm| others.union_with(&vm.cpus));
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
                && let Some(of) = self.0.cache_classes.get(class)
            {
                order.cache_classes.entry(class.clone()).or_insert_with(|| of.clone());
            }
            others.union_with(&cpus);
            *reason += &format!("; what is in force for it on CPUs {cpus} stays");
            let vm = Vm { cpus, ..vm.clone() };
            order.vms.insert(pod.clone(), vm);
        }
        order.shared = order.shared.difference(&others);
    }
}
