//! Where the cgroups of a new instance are made: in a scope, or in the container's own cgroup where its OCI runtime copes with
//! that.

use stelia_api::{Error, ErrorKind};
use stelia_kernel::oci::{Coping, Runtime};
use stelia_kubelet::QosClass;
use stelia_model::PinnedReason;
use stelia_model::record::{Home, Phase, Record, Tree};
use stelia_settings::{Isolation, Partition, Policies, TreeHome};

use super::{Adopting, Candidate, Movable};
use crate::partition_kind::{forbidden, partition_kind};
use crate::{Instance, Snapshot};

/// Where a container's instance is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeChoice {
    /// In the container's own cgroup.
    InPlace,
    /// In a scope of stelia.slice; with the reason, where it was to be in place.
    Slice(Option<String>),
    /// Not known before the container's runtime is checked.
    Unchecked(Runtime),
}

/// A check of a runtime that ended, with the reason where it failed.
pub type RuntimeCheck = Result<(), String>;

impl HomeChoice {
    /// Where the instance of a container with this record is made. `wanted`: by the settings or the rule. `coping`: what is known of the
    /// container's runtime; it is called only where that decides. `check`: the runtime's, for which this registration has waited.
    pub fn choose(
        snapshot: &Snapshot,
        policies: &Policies,
        wanted: TreeHome,
        record: &Record,
        coping: impl FnOnce() -> Coping,
        check: Option<&RuntimeCheck>,
    ) -> Self {
        if wanted == TreeHome::Slice {
            return Self::Slice(None);
        }
        if let Err(reason) = check_in_place(snapshot, policies, record) {
            return Self::Slice(Some(reason));
        }
        match (coping(), check) {
            (Coping::Copes, _) => Self::InPlace,
            (Coping::No(reason), _) => Self::Slice(Some(reason)),
            (Coping::Unchecked(runtime), Some(check)) => {
                let failure = check.as_ref().err().map_or("no verdict was written", String::as_str);
                let binary = runtime.binary.display();
                Self::Slice(Some(format!(
                    "whether {binary} copes with it could not be checked: {failure}"
                )))
            }
            (Coping::Unchecked(runtime), None) => Self::Unchecked(runtime),
        }
    }
}

/// Whether an instance may be made in the container's own cgroup.
///
/// # Errors
/// Why not.
fn check_in_place(snapshot: &Snapshot, policies: &Policies, record: &Record) -> Result<(), String> {
    // The levels above must be the pod's and kubepods' alone.
    let class = QosClass::of(record.origin.as_str());
    if class != QosClass::Guaranteed {
        return Err(format!("its pod is {}, not Guaranteed", class.name()));
    }
    // Nothing of the container is moved or confined: without a partition it runs on the CPUs that kubelet gave it. CPUs that steliad chose
    // are those of the partition alone.
    if record.home == Home::Container && record.allocation.is_none() {
        return Ok(());
    }
    match forbidden(snapshot, policies, record) {
        // Its other threads have CPUs of their own among the container's: a partition would give them no others.
        Some(PinnedReason::Rule) if !record.spare.is_empty() => return Ok(()),
        // Without a partition everything of the container would be confined to the container's own CPUs.
        Some(why) => return Err(format!("it would get no partition ({})", why.name())),
        None => {}
    }
    if !snapshot.safe_partition.is_partition() {
        return Err("this kernel makes no partition".to_owned());
    }
    Ok(())
}

/// Why a partition in the container's cgroup could stop the node: on Linux 6.7 to 7.1 making one that is `isolated` can, and where there is
/// a partition, whoever may write below it may make one (`docs/kernels.md`).
fn why_unsafe(snapshot: &Snapshot, policies: &Policies, candidate: &Candidate, record: &Record) -> Option<String> {
    let is_safe = snapshot.safe_partition == Partition::Isolated || policies.partition == Some(Partition::Isolated);
    let reason = candidate.writes_cgroups.as_ref().filter(|_| !is_safe)?;
    forbidden(snapshot, policies, record).is_none().then(|| {
        format!(
            "the container may write below its cgroup ({reason}), and an isolated partition made there could stop the node on this kernel (kernels.md)"
        )
    })
}

/// A container that becomes an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInstance {
    /// Its record. If a VM is adopted in place, it contains the vCPUs.
    pub record: Record,
    /// Where it is made.
    pub home: HomeChoice,
}

/// The instance of a container whose own cgroup becomes its partition. Its CPUs are isolated from its registration on, with or without a VM.
///
/// # Errors
/// Its pod is not Guaranteed, other containers of the pod use CPUs of its entry, it could stop the node, or there can be no partition, with
/// CPUs that steliad chose.
fn whole_container(
    record: Record,
    candidate: &Candidate,
    adopting: Option<&Adopting>,
    snapshot: &Snapshot,
    policies: &Policies,
) -> Result<NewInstance, Error> {
    let record = Record {
        anchor: None,
        phase: Phase::Attaching,
        ..record
    };
    check_in_place(snapshot, policies, &record).map_err(|text| ErrorKind::Failed.because(text).of(&record.pod))?;
    if record.exclusive != record.entry {
        // The container would lose these CPUs.
        let shared = record.entry.difference(&record.exclusive);
        let text = format!("other containers of its pod use the CPUs {shared} of its entry");
        return Err(ErrorKind::Failed.because(text).of(&record.pod));
    }
    let blank = Instance::admitted(record.clone(), None, Tree::of(&record));
    let record = Record {
        partition: partition_kind(snapshot, policies, &blank),
        ..record
    };
    if let Some(reason) = why_unsafe(snapshot, policies, candidate, &record) {
        return Err(ErrorKind::NotPermitted.because(reason).of(&record.pod));
    }
    let record = match adopting.filter(|adopting| !adopting.threads.is_empty()) {
        Some(adopting) => adopting.with_vcpus(record, snapshot, policies),
        None => record,
    };
    let home = HomeChoice::InPlace;
    Ok(NewInstance { record, home })
}

/// Refuse a container that another program made a partition: steliad would have to undo that partition later, and cannot take CPUs from it.
/// `kind`: the partition that it is before steliad makes one.
///
/// # Errors
/// `Failed`.
pub fn check_no_partition(kind: Option<String>) -> Result<(), Error> {
    kind.map_or(Ok(()), |kind| {
        let text = format!(
            "another program made the container a partition (cpuset.cpus.partition is {kind}), as CRI-O does by the annotation \
             cpu-load-balancing.crio.io: create the pod without it (quiet-cpus.md)"
        );
        Err(ErrorKind::Failed.because(text).lasting())
    })
}

/// Decide where the instance of a container is made that was admitted with this record. `adopting`: the VM, where a rule makes the
/// instance. `coping` and `check` as for [`HomeChoice::choose`].
///
/// # Errors
/// The VM must be in place and cannot be; a cgroup with a name that steliad needs exists already; a pod asks for isolation that
/// `isolation-allowed` forbids; for a whole container, the
/// errors of `whole_container`.
pub fn choose_home(
    record: Record,
    candidate: &Candidate,
    adopting: Option<&Adopting>,
    snapshot: &Snapshot,
    policies: &Policies,
    coping: impl FnOnce() -> Coping,
    check: Option<&RuntimeCheck>,
) -> Result<NewInstance, Error> {
    let record = Record {
        adopted: adopting.map(Adopting::recorded),
        ..record
    };
    if record.home == Home::Container {
        if candidate.caller.is_some() && policies.isolation_allowed != Isolation::Container {
            let text = "a pod of this node may not ask for isolation \"container\" (isolation-allowed = \"vcpus\")";
            return Err(ErrorKind::NotPermitted.because(text).of(&record.pod));
        }
        return whole_container(record, candidate, adopting, snapshot, policies);
    }
    let wanted = adopting.map_or(policies.tree, |adopting| adopting.rule.tree);
    let in_place = Record {
        home: Home::InPlace,
        anchor: None,
        ..record.clone()
    };
    // With its vCPUs, because their pins decide which of its CPUs are spare.
    let in_place = match adopting {
        Some(adopting) => adopting.with_vcpus(in_place, snapshot, policies),
        None => in_place,
    };
    let home = match (wanted.preferred(), why_unsafe(snapshot, policies, candidate, &in_place)) {
        (TreeHome::InPlace, Some(reason)) => HomeChoice::Slice(Some(reason)),
        (wanted, _) => HomeChoice::choose(snapshot, policies, wanted, &in_place, coping, check),
    };
    if home == HomeChoice::InPlace {
        if let Some(cgroup) = &candidate.conflicting_cgroup {
            let text = format!("{cgroup} exists already: steliad makes it, and nobody else may");
            return Err(ErrorKind::InvalidArgument.because(text).of(&record.pod));
        }
        let record = in_place;
        return Ok(NewInstance { record, home });
    }
    if let (Some(adopting), HomeChoice::Slice(reason)) = (adopting, &home) {
        let movable = Movable {
            rule: &adopting.rule,
            housekeeping: candidate.housekeeping,
            spare: in_place.spare,
            has_anchor: record.anchor.is_some(),
        };
        let refused = movable.in_slice(reason.as_deref());
        refused.map_err(|(kind, text)| kind.because(text).of(&record.pod))?;
    }
    Ok(NewInstance { record, home })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stelia_api::ErrorKind;
    use stelia_kernel::cgroup::CgroupPath;
    use stelia_kernel::oci::{Kind, Manager};
    use stelia_kernel::proc::TaskId;
    use stelia_model::record::Vcpu;
    use stelia_settings::{AdoptRule, ReadyMade, TreeChoice};

    use super::*;
    use crate::admission::tests::{candidate, kubelet};
    use crate::admission::{CheckedClaim, admit};
    use crate::{AdoptedPlacement, Level};

    fn unchecked() -> Coping {
        Coping::Unchecked(Runtime {
            manager: Manager::Containerd,
            kind: Kind::Runc,
            binary: "/usr/sbin/runc".into(),
            root: "/run/containerd/runc/k8s.io".into(),
            systemd_cgroup: true,
        })
    }

    /// A VM with two vCPUs on CPUs 2 and 3, which are all that its container has.
    fn adopting(rule: ReadyMade) -> Adopting {
        let task = |id| TaskId { id, start: 1 };
        let vcpu = |index| Vcpu {
            index,
            props: BTreeMap::new(),
        };
        Adopting {
            rule: AdoptRule::ready_made(rule).unwrap(),
            vmm: Some(task(120)),
            threads: [(0, task(121)), (1, task(122))].into(),
            guest: vec![vcpu(0), vcpu(1)],
            wanted: AdoptedPlacement {
                pinned_cpus: Some([(0, 2), (1, 3)].into()),
                policy: None,
            },
        }
    }

    fn chosen(
        adopting: Option<&Adopting>,
        candidate: &Candidate,
        coping: Coping,
        check: Option<&RuntimeCheck>,
    ) -> Result<NewInstance, Error> {
        let mut snapshot = crate::testing::snapshot(vec![]);
        snapshot.kubelet = kubelet(&[("instance", "2-3")]);
        snapshot.kubepods = Some(Level {
            path: CgroupPath::parse("/kubepods.slice").unwrap(),
            exclusive: Some(Default::default()),
            ours: Default::default(),
        });
        let policies = Policies {
            tree: TreeChoice::Auto,
            ..Policies::default()
        };
        let claim = CheckedClaim::default();
        let record = admit(&claim, candidate, &snapshot, &snapshot.facts(), &policies.allocator)?;
        choose_home(record, candidate, adopting, &snapshot, &policies, || coping, check)
    }

    #[test]
    fn a_runtime_that_was_not_checked_decides_once_its_check_ended() {
        let home = |check: Option<&RuntimeCheck>| chosen(None, &candidate(), unchecked(), check).unwrap().home;
        assert!(matches!(home(None), HomeChoice::Unchecked(runtime) if runtime.binary.ends_with("runc")));
        let HomeChoice::Slice(Some(reason)) = home(Some(&Err("timeout".into()))) else {
            panic!("it is in place")
        };
        assert_eq!(
            reason,
            "whether /usr/sbin/runc copes with it could not be checked: timeout"
        );
    }

    #[test]
    fn a_vm_that_is_adopted_in_place_has_its_vcpus_at_once_and_no_anchor() {
        let vm = adopting(ReadyMade::Libvirt);
        let instance = chosen(Some(&vm), &candidate(), Coping::Copes, None).unwrap();
        assert_eq!(
            (&instance.home, instance.record.home),
            (&HomeChoice::InPlace, Home::InPlace)
        );
        let cpus: Vec<Option<u32>> = instance.record.vcpus.iter().map(|thread| thread.cpu).collect();
        assert_eq!((cpus, instance.record.anchor), (vec![Some(2), Some(3)], None));
        // In the slice they come with AttachVcpus.
        let instance = chosen(Some(&vm), &candidate(), Coping::No("no".into()), None).unwrap();
        assert_eq!(instance.home, HomeChoice::Slice(Some("no".into())));
        assert!(instance.record.vcpus.is_empty() && instance.record.anchor.is_some());
        assert!(instance.record.adopted.is_some_and(|adopted| adopted.keeps));
    }

    #[test]
    fn a_vm_that_is_its_containers_first_process_is_refused_where_it_cannot_be_in_place() {
        let vm = adopting(ReadyMade::Libvirt);
        let alone = Candidate {
            anchor: None,
            needs_anchor: false,
            ..candidate()
        };
        let kind = |coping| chosen(Some(&vm), &alone, coping, None).map_err(|refusal| refusal.kind);
        assert_eq!(kind(Coping::No("no".into())).unwrap_err(), ErrorKind::NoAnchor);
        assert!(kind(Coping::Copes).is_ok());
        // Before the runtime was checked nothing is refused.
        assert!(matches!(kind(unchecked()).unwrap().home, HomeChoice::Unchecked(_)));
    }

    #[test]
    fn a_container_without_a_partition_is_in_place_only_where_its_threads_have_cpus_all_the_same() {
        const BURSTABLE: &str = "/kubepods.slice/kubepods-burstable.slice/x.scope";
        fn pinned_by_rule(record: &mut Record) {
            record.adopted = stelia_model::record::testing::adopted().adopted;
            record.adopted.as_mut().unwrap().pinned = true;
        }
        let may = |change: fn(&mut Snapshot, &mut Policies, &mut Record)| {
            let (mut snapshot, mut policies) = (crate::testing::snapshot(vec![]), Policies::default());
            let mut record = stelia_model::record::testing::in_place();
            change(&mut snapshot, &mut policies, &mut record);
            check_in_place(&snapshot, &policies, &record).is_ok()
        };
        assert!(may(|_, _, _| {}));
        assert!(!may(
            |_, _, record| record.origin = CgroupPath::parse(BURSTABLE).unwrap()
        ));
        assert!(!may(|snapshot, _, _| snapshot.safe_partition = Partition::Member));
        assert!(!may(|_, policies, _| policies.partition = Some(Partition::Member)));
        assert!(may(|_, policies, record| {
            policies.partition = Some(Partition::Member);
            record.home = Home::Container;
        }));
        assert!(!may(|_, policies, record| {
            policies.partition = Some(Partition::Member);
            record.home = Home::Container;
            record.allocation = stelia_model::record::testing::allocated().allocation;
        }));
        // Its other threads have CPUs of their own among the container's.
        assert!(!may(|_, _, record| pinned_by_rule(record)));
        assert!(may(|_, _, record| {
            pinned_by_rule(record);
            record.spare = "4".parse().unwrap();
        }));
    }

    #[test]
    fn a_container_that_writes_cgroups_is_in_place_only_where_no_partition_stops_the_node() {
        let may = |change: fn(&mut Snapshot, &mut Policies, &mut Candidate)| {
            let (mut snapshot, mut policies) = (crate::testing::snapshot(vec![]), Policies::default());
            let mut candidate = Candidate {
                writes_cgroups: Some("it is privileged".into()),
                ..candidate()
            };
            snapshot.safe_partition = Partition::Root;
            change(&mut snapshot, &mut policies, &mut candidate);
            let record = stelia_model::record::testing::in_place();
            why_unsafe(&snapshot, &policies, &candidate, &record).is_none()
        };
        assert!(!may(|_, _, _| {}));
        assert!(may(|_, _, candidate| candidate.writes_cgroups = None));
        assert!(may(|snapshot, _, _| snapshot.safe_partition = Partition::Isolated));
        assert!(may(|_, policies, _| policies.partition = Some(Partition::Isolated)));
        assert!(may(|_, policies, _| policies.partition = Some(Partition::Member)));
        assert!(!may(|_, policies, _| policies.partition = Some(Partition::Root)));
    }
}
