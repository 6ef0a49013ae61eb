//! Where the cgroups of an adopted VM are made, and what is refused because of it. The daemon and the dry run ask the same.

use stelia_api::ErrorKind;
use stelia_cpus::CpuSet;
use stelia_settings::{AdoptPartition, AdoptRule, AdoptTree};

/// What of a VM that is to be adopted decides whether it may be moved to `stelia.slice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movable<'a> {
    pub rule: &'a AdoptRule,
    /// It has processes in KubeVirt's `housekeeping`.
    pub housekeeping: bool,
    /// The container's own CPUs that no vCPU is pinned to, where the pins are kept.
    pub spare: CpuSet,
    /// Its first process is not its VMM, and stays in the container's cgroup.
    pub has_anchor: bool,
}

impl Movable<'_> {
    /// Whether it depends on the container's runtime whether the VM is adopted at all.
    pub fn only_in_place(&self) -> bool {
        self.in_slice(None).is_err() || self.rule.tree == AdoptTree::InPlace
    }

    /// Whether it may be moved to `stelia.slice`; `reason`: why it cannot be in place, where it was to be.
    ///
    /// # Errors
    /// The kind of the refusal, and a sentence.
    pub fn in_slice(&self, reason: Option<&str>) -> Result<(), (ErrorKind, String)> {
        if let Some(reason) = reason.filter(|_| self.rule.tree == AdoptTree::InPlace) {
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
    use stelia_settings::ReadyMade;

    use super::*;

    #[test]
    fn what_cannot_leave_its_container_is_refused_where_it_cannot_be_in_place() {
        let rule = AdoptRule::ready_made(ReadyMade::KubeVirt).unwrap();
        let movable = Movable {
            rule: &rule,
            housekeeping: false,
            spare: CpuSet::new(),
            has_anchor: true,
        };
        assert_eq!(movable.in_slice(Some("it does not cope")), Ok(()));
        assert!(!movable.only_in_place());
        let kind = |movable: &Movable<'_>| {
            let (kind, text) = movable.in_slice(Some("it does not cope")).unwrap_err();
            assert!(text.contains("it does not cope"), "{text}");
            assert!(movable.only_in_place());
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
            tree: AdoptTree::InPlace,
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
