//! A container whose VM did not register itself: the administrator's rule makes it an instance.

use std::collections::BTreeMap;

use stelia_api::ErrorKind;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::TaskId;
use stelia_model::record::{Adopted, Record, Tree, Vcpu};
use stelia_settings::{AdoptPartition, AdoptPlacement, AdoptRule, Policies, TreeChoice};

use crate::{AdoptedPlacement, Instance, Snapshot, attached};

/// A VM that is to become an instance by the administrator's rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopting {
    /// The rule that found it.
    pub rule: AdoptRule,
    /// Its VMM. It is moved, so it is no anchor. `None` where the whole container is adopted.
    pub vmm: Option<TaskId>,
    /// Its vCPU threads by index: all of 0 to the last, but for those that were not plugged.
    pub threads: BTreeMap<u32, TaskId>,
    /// Its vCPUs, with each one's place in the guest, where its command line says; without it each vCPU is a core.
    pub guest: Vec<Vcpu>,
    /// How they are to be placed.
    pub wanted: AdoptedPlacement,
}

impl Adopting {
    /// Whether its vCPUs are to stay where they are pinned, but are not each pinned to a CPU.
    pub fn is_unpinned(&self) -> bool {
        let keeps = self.vmm.is_some() && self.rule.placement == AdoptPlacement::Keep;
        keeps && self.wanted.pinned_cpus.is_none()
    }

    /// Whether its command line has the number of vCPUs, or none is looked for.
    pub fn is_counted(&self) -> bool {
        self.vmm.is_none() || self.guest.iter().any(|vcpu| !vcpu.props.is_empty())
    }

    /// What the record keeps of the rule.
    pub(super) fn recorded(&self) -> Adopted {
        Adopted {
            rule: self.rule.name.clone(),
            keeps: self.rule.placement == AdoptPlacement::Keep,
            pinned: self.rule.partition == AdoptPartition::Member,
        }
    }

    /// The record with the VM's vCPUs, as AttachVcpus would record them. A VM that is adopted in place has them from the beginning: they
    /// stay where they are until their partition is made, pinned as they were found, so that a daemon which dies in between leaves
    /// the pins to the next one.
    pub fn with_vcpus(&self, record: Record, snapshot: &Snapshot, policies: &Policies) -> Record {
        let tree = Tree::of(&record);
        let blank = Instance::admitted(record, None, tree);
        let tasks = self.threads.iter().map(|(index, task)| ((*index).into(), *task));
        let guest = self.guest.clone();
        attached(snapshot, policies, &blank, tasks.collect(), guest, &self.wanted).0
    }
}

/// Take KubeVirt's `housekeeping` out of a container's other cgroups that have processes; whether it was among them. When the VM is
/// adopted it becomes its float.
pub fn take_housekeeping(origin: &CgroupPath, elsewhere: &mut Vec<CgroupPath>) -> bool {
    let tree = Tree::in_place(origin.clone());
    let before = elsewhere.len();
    elsewhere.retain(|cgroup| cgroup != tree.float());
    elsewhere.len() < before
}

/// What of a VM that is to be adopted decides whether it may be moved to `stelia.slice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Movable<'a> {
    pub(super) rule: &'a AdoptRule,
    /// It has processes in KubeVirt's `housekeeping`.
    pub(super) housekeeping: bool,
    /// The container's own CPUs that no vCPU is pinned to, where the pins are kept.
    pub(super) spare: CpuSet,
    /// Its first process is not its VMM, and stays in the container's cgroup.
    pub(super) has_anchor: bool,
}

impl Movable<'_> {
    /// Whether it may be moved to `stelia.slice`; `reason`: why it cannot be in place, where it was to be.
    ///
    /// # Errors
    /// The kind of the refusal, and a sentence.
    pub(super) fn in_slice(&self, reason: Option<&str>) -> Result<(), (ErrorKind, String)> {
        if let Some(reason) = reason.filter(|_| self.rule.tree == TreeChoice::InPlace) {
            return Err((ErrorKind::Failed, format!("its rule wants it in place: {reason}")));
        }
        let cannot = reason
            .map(|reason| format!(", where it cannot be: {reason}"))
            .unwrap_or_default();
        if self.housekeeping {
            let text = format!(
                "KubeVirt moves its threads to a cgroup of its own (isolateEmulatorThread), which works in place only{cannot}"
            );
            return Err((ErrorKind::Failed, text));
        }
        // virt-handler may have yet to make that cgroup, and would make it in the slice.
        if self.rule.partition == AdoptPartition::Member && !self.spare.is_empty() {
            let text = format!(
                "no vCPU is pinned to its CPUs {}, as with KubeVirt's isolateEmulatorThread, which works in place only{cannot}",
                self.spare
            );
            return Err((ErrorKind::Failed, text));
        }
        if !self.has_anchor {
            let cannot = reason
                .map(|reason| format!("it cannot be in place: {reason}; and "))
                .unwrap_or_default();
            let text = format!(
                "{cannot}its VMM is the container's first process: nothing would stay in the container if it were moved to stelia.slice"
            );
            return Err((ErrorKind::NoAnchor, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use stelia_settings::{Isolation, ReadyMade};

    use super::*;

    #[test]
    fn kubevirts_housekeeping_is_not_one_of_the_other_cgroups() {
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        let mut elsewhere = vec![path("/a/housekeeping"), path("/a/x")];
        assert!(take_housekeeping(&path("/a"), &mut elsewhere));
        assert_eq!(elsewhere, [path("/a/x")]);
        assert!(!take_housekeeping(&path("/a"), &mut elsewhere));
    }

    #[test]
    fn what_cannot_leave_its_container_is_refused_where_it_cannot_be_in_place() {
        let rule = AdoptRule {
            isolation: Isolation::Vcpus,
            partition: AdoptPartition::Member,
            ..AdoptRule::ready_made(ReadyMade::KubeVirt).unwrap()
        };
        let movable = Movable {
            rule: &rule,
            housekeeping: false,
            spare: CpuSet::new(),
            has_anchor: true,
        };
        assert_eq!(movable.in_slice(Some("it does not cope")), Ok(()));
        let kind = |movable: &Movable<'_>| {
            let (kind, text) = movable.in_slice(Some("it does not cope")).unwrap_err();
            assert!(text.contains("it does not cope"), "{text}");
            kind
        };
        let emulator = Movable {
            spare: "4".parse().unwrap(),
            ..movable.clone()
        };
        assert_eq!(kind(&emulator), ErrorKind::Failed);
        let housekeeping = Movable {
            housekeeping: true,
            ..movable.clone()
        };
        assert_eq!(kind(&housekeeping), ErrorKind::Failed);
        let first = Movable {
            has_anchor: false,
            ..movable.clone()
        };
        assert_eq!(kind(&first), ErrorKind::NoAnchor);
        // With libvirt's rule the emulator's CPU is float's, in the slice too.
        let libvirt = AdoptRule::ready_made(ReadyMade::Libvirt).unwrap();
        let pinned = Movable {
            rule: &libvirt,
            ..emulator
        };
        assert_eq!(pinned.in_slice(None), Ok(()));
        let in_place = AdoptRule {
            tree: TreeChoice::InPlace,
            ..libvirt
        };
        assert_eq!(
            kind(&Movable {
                rule: &in_place,
                ..movable
            }),
            ErrorKind::Failed
        );
    }
}
