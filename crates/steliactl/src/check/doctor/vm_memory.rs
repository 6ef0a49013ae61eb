//! How much memory of VMs is outside their pods' cgroups, where kubelet does not count it.

use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::locality::size;

use super::Facts;
use super::checks::{Finding, NO_ANSWER, advice, ok, unknown};
use crate::shared::daemon::Description;
use crate::shared::output::counted;

/// The memory of VMs in `stelia.slice`, as the daemon read it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OutsideMemory {
    /// The sum of `memory.current` of their scopes.
    pub(crate) bytes: u64,
    pub(crate) vms: usize,
}

impl OutsideMemory {
    pub(super) fn of(described: &Description) -> Self {
        let slice = CgroupPath::slice();
        let instances = described.node.instances.iter();
        let outside = instances.filter(|(_, instance)| instance.scope.is_within(&slice));
        outside.fold(Self::default(), |sum, (pod, _)| Self {
            bytes: sum.bytes + described.usage.get(pod).map_or(0, |usage| usage.memory_bytes),
            vms: sum.vms + 1,
        })
    }
}

/// What `kubectl top`, the limit of kubepods and the order of evictions leave out.
pub(super) fn check(facts: &Facts) -> Finding {
    let Some(outside) = &facts.outside_memory else {
        return unknown(NO_ANSWER);
    };
    if outside.vms == 0 || outside.bytes == 0 {
        return ok("no VM's memory is outside its pod's cgroup");
    }
    advice(
        format!(
            "{} of {} is in stelia.slice, where kubectl top, the limit of kubepods and kubelet's order of evictions do not count it",
            size(outside.bytes),
            counted(outside.vms as u64, "VM")
        ),
        "tree = \"auto\" in /etc/stelia/steliad.toml, for new VMs (/usr/share/doc/steliad/in-place.md); otherwise reserve that memory in \
         kubelet's systemReserved",
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use stelia_kubelet::PodUid;
    use stelia_model::{Instance, Usage};

    use super::*;
    use crate::check::doctor::Verdict;

    #[test]
    fn the_memory_of_scopes_is_summed_and_that_of_instances_in_place_is_the_pods_own() {
        let mut described = Description::default();
        let scopes = [
            "/stelia.slice/a.scope",
            "/stelia.slice/b.scope",
            "/kubepods.slice/c.scope",
        ];
        for (number, scope) in (1..).zip(scopes) {
            let pod = PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
            let instance = Instance {
                scope: CgroupPath::parse(scope).unwrap(),
                ..Instance::default()
            };
            described.node.instances.insert(pod.clone(), Arc::new(instance));
            let usage = Usage {
                memory_bytes: number << 30,
                ..Usage::default()
            };
            described.usage.insert(pod, usage);
        }
        let outside = OutsideMemory::of(&described);
        assert_eq!(outside, OutsideMemory { bytes: 3 << 30, vms: 2 });
        let mut facts = Facts::read(Path::new("/nowhere"));
        assert_eq!(check(&facts), unknown(NO_ANSWER));
        facts.outside_memory = Some(outside);
        let found = check(&facts);
        assert_eq!(found.verdict, Verdict::Advice);
        assert!(
            found.found.starts_with("3.0 GiB of 2 VMs is in stelia.slice"),
            "{}",
            found.found
        );
        for vms in [0, 2] {
            facts.outside_memory = Some(OutsideMemory { bytes: 0, vms });
            assert_eq!(check(&facts).verdict, Verdict::Ok, "{vms} VMs");
        }
    }
}
