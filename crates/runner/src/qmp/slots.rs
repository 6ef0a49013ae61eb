//! Which of QEMU's CPU slots to plug and to unplug. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// An element of `query-hotpluggable-cpus`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Slot {
    /// The driver of a CPU that fits, for `device_add`.
    #[serde(rename = "type")]
    pub(crate) driver: String,
    /// The number of vCPUs in the slot: 1 on x86 and Arm.
    #[serde(default = "one")]
    pub(crate) vcpus_count: u32,
    /// Its place in the guest's topology, for `device_add`.
    #[serde(default)]
    pub(crate) props: BTreeMap<String, Value>,
    /// The vCPU in the slot; `None`: one could be plugged.
    pub(crate) qom_path: Option<String>,
}

fn one() -> u32 {
    1
}

/// The levels of the topology above a thread, from the widest.
const LEVELS_ABOVE_THREAD: [&str; 6] = ["node-id", "socket-id", "die-id", "cluster-id", "module-id", "core-id"];

impl Slot {
    fn number(&self, name: &str) -> i64 {
        self.props.get(name).and_then(Value::as_i64).unwrap_or(-1)
    }

    fn core(&self) -> [i64; 6] {
        LEVELS_ABOVE_THREAD.map(|name| self.number(name))
    }

    fn place(&self) -> ([i64; 6], i64) {
        (self.core(), self.number("thread-id"))
    }

    /// The id of the device that is plugged into the slot: no other slot of the machine has the same place.
    pub(crate) fn device_id(&self) -> String {
        let (core, thread) = self.place();
        let numbers: Vec<String> = core
            .iter()
            .chain([&thread])
            .filter(|number| **number >= 0)
            .map(i64::to_string)
            .collect();
        format!("stelia-vcpu-{}", numbers.join("-"))
    }
}

/// The free slots for so many more vCPUs, or for fewer if there are no more: first the siblings of vCPUs that are there, then core by core.
pub(crate) fn to_plug(slots: &[Slot], count: usize) -> Vec<&Slot> {
    let is_used = |slot: &Slot| slot.qom_path.is_some();
    let mut free: Vec<&Slot> = slots
        .iter()
        .filter(|slot| !is_used(slot) && slot.vcpus_count == 1)
        .collect();
    free.sort_by_key(|slot| {
        let has_sibling = slots.iter().any(|other| is_used(other) && other.core() == slot.core());
        (!has_sibling, slot.place())
    });
    free.truncate(count);
    free
}

/// The vCPUs to unplug for so many fewer, or for fewer if that is not possible: the last of the topology first. The vCPU that booted the guest
/// cannot be unplugged: `boot` is its place, and without it the first one.
pub(crate) fn to_unplug<'a>(
    slots: &'a [Slot],
    count: usize,
    boot: Option<&BTreeMap<String, Value>>,
) -> Vec<(&'a Slot, &'a str)> {
    let mut used: Vec<(&Slot, &str)> = slots
        .iter()
        .filter(|slot| slot.vcpus_count == 1)
        .filter_map(|slot| Some((slot, slot.qom_path.as_deref()?)))
        .collect();
    used.sort_by_key(|(slot, _)| (Some(&slot.props) != boot, slot.place()));
    used.into_iter().skip(1).rev().take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of 2 sockets with 2 cores of 2 threads, in QEMU's order, which is descending; `used`: how many vCPUs it has.
    fn machine(used: usize) -> Vec<Slot> {
        let mut slots: Vec<Slot> = (0..8usize)
            .map(|index| {
                let place =
                    serde_json::json!({"socket-id": index / 4, "core-id": index / 2 % 2, "thread-id": index % 2});
                Slot {
                    driver: "host-x86_64-cpu".into(),
                    vcpus_count: 1,
                    props: serde_json::from_value(place).unwrap(),
                    qom_path: (index < used).then(|| format!("/cpu/{index}")),
                }
            })
            .collect();
        slots.reverse();
        slots
    }

    fn paths(slots: &[Slot], count: usize) -> Vec<&str> {
        to_unplug(slots, count, None)
            .into_iter()
            .map(|(_, path)| path)
            .collect()
    }

    fn ids(slots: &[&Slot]) -> Vec<String> {
        slots.iter().map(|slot| slot.device_id()).collect()
    }

    #[test]
    fn a_core_is_completed_before_the_next_one_is_begun() {
        let slots = machine(3);
        assert_eq!(ids(&to_plug(&slots, 2)), ["stelia-vcpu-0-1-1", "stelia-vcpu-1-0-0"]);
        // The guest gave up the sibling of its first vCPU.
        let mut slots = machine(4);
        slots[6].qom_path = None;
        assert_eq!(ids(&to_plug(&slots, 1)), ["stelia-vcpu-0-0-1"]);
    }

    #[test]
    fn a_numa_node_is_filled_before_the_next_one_and_emptied_after_it() {
        // Sockets and nodes in another order than their numbers.
        let mut slots = machine(0);
        for slot in &mut slots {
            let node = 1 - slot.number("socket-id");
            slot.props.insert("node-id".into(), node.into());
        }
        let ids_of = |slots: &[Slot]| ids(&to_plug(slots, 5)).join(" ");
        assert_eq!(
            ids_of(&slots),
            "stelia-vcpu-0-1-0-0 stelia-vcpu-0-1-0-1 stelia-vcpu-0-1-1-0 stelia-vcpu-0-1-1-1 stelia-vcpu-1-0-0-0"
        );
        for slot in &mut slots {
            slot.qom_path = Some(format!("/cpu/{}", slot.device_id()));
        }
        assert_eq!(
            paths(&slots, 2),
            ["/cpu/stelia-vcpu-1-0-1-1", "/cpu/stelia-vcpu-1-0-1-0"]
        );
    }

    #[test]
    fn no_more_than_the_machine_has_is_plugged() {
        assert_eq!(to_plug(&machine(7), 4).len(), 1);
        assert!(to_plug(&machine(8), 1).is_empty());
    }

    #[test]
    fn the_last_vcpus_are_unplugged_and_never_the_first() {
        assert_eq!(paths(&machine(6), 2), ["/cpu/5", "/cpu/4"]);
        assert_eq!(paths(&machine(3), 9), ["/cpu/2", "/cpu/1"]);
        assert!(to_unplug(&machine(1), 1, None).is_empty());
    }

    #[test]
    fn the_vcpu_that_booted_the_guest_stays_wherever_it_is() {
        let mut slots = machine(3);
        let boot = slots[5].props.clone();
        let paths = |slots: &[Slot]| -> Vec<String> {
            let chosen = to_unplug(slots, 9, Some(&boot)).into_iter();
            chosen.map(|(_, path)| path.to_owned()).collect()
        };
        assert_eq!(paths(&slots), ["/cpu/1", "/cpu/0"]);
        slots.reverse();
        assert_eq!(paths(&slots), ["/cpu/1", "/cpu/0"]);
    }

    #[test]
    fn slots_of_several_vcpus_are_left_alone() {
        let mut slots = machine(4);
        slots.iter_mut().for_each(|slot| slot.vcpus_count = 2);
        assert!(to_plug(&slots, 1).is_empty() && to_unplug(&slots, 1, None).is_empty());
    }

    #[test]
    fn what_qemu_answers_is_understood() {
        let text = r#"[{"props": {"core-id": 0, "thread-id": 0, "socket-id": 1}, "vcpus-count": 1, "type": "host-x86_64-cpu"},
            {"props": {"core-id": 0, "thread-id": 0, "socket-id": 0}, "vcpus-count": 1, "qom-path": "/machine/unattached/device[0]",
             "type": "host-x86_64-cpu"}]"#;
        let slots: Vec<Slot> = serde_json::from_str(text).unwrap();
        assert_eq!(ids(&to_plug(&slots, 1)), ["stelia-vcpu-1-0-0"]);
        assert!(to_unplug(&slots, 1, None).is_empty());
    }
}
