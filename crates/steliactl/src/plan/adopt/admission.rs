//! What the daemon would say of a VM that is to be adopted: its own decisions (`crates/decide/`), asked with what can be read here.
//!
//! The daemon knows more, and its answer counts: what instances' cgroups have besides their records, and where steliad chooses the CPUs
//! (`cpu-source`), those that kubelet's static policy assigned before it was switched off.

use std::collections::BTreeMap;
use std::path::Path;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::{CpuSet, Topology};
use stelia_decide::admission::{
    Adopting, Candidate, CheckedClaim, Home, RuntimeCheck, admit, check_no_partition, choose_home,
    is_allocated_by_default, kubelets_cpus,
};
use stelia_decide::adopt::AdoptableVm;
use stelia_decide::{AdoptedPlacement, Derived, Instance, Level, Snapshot, Tree, refused_beside, usable_state};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, optional, read_optional_cpus};
use stelia_kernel::containers::{partition_kind, pod_cgroups};
use stelia_kernel::dra;
use stelia_kernel::kernel_release::isolated_is_safe;
use stelia_kernel::oci::Coping;
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::cpu_manager_state::{CPU_MANAGER_STATE, MAX_BYTES};
use stelia_kubelet::{CpuManagerState, PodUid, home};
use stelia_model::record::{Record, RecordError, RecordPlace};
use stelia_settings::{AdoptRule, Partition, Policies, Settings};

use crate::shared::files;
use crate::shared::kernel::Roots;

/// The name of a reason, and the sentence.
pub(super) type Refusal = (String, String);

fn refusal(error: &Error) -> Refusal {
    (error.kind.name().to_owned(), error.to_string())
}

/// Why a container of an instance is not adopted.
pub(super) fn instance_exists() -> Refusal {
    refusal(&ErrorKind::InstanceExists.because("it is an instance already"))
}

/// Whether a container that may be a partition already is not refused.
///
/// # Errors
/// Its cgroup cannot be read. The inner error: why it would not be adopted.
pub(super) fn unpartitioned(cgroups: &dyn Cgroups, origin: &CgroupPath) -> Result<Result<(), Refusal>, CgroupError> {
    let kind = partition_kind(cgroups, origin)?;
    Ok(check_no_partition(kind).map_err(|error| refusal(&error)))
}

/// The node, as the daemon's admission takes it.
#[derive(Debug)]
pub(super) struct Admission {
    snapshot: Snapshot,
    facts: Derived,
    policies: Policies,
}

impl Admission {
    /// Reads the node below `root` (`/`).
    ///
    /// # Errors
    /// A cgroup cannot be read.
    pub(super) fn read(
        root: &Path,
        roots: &Roots,
        cgroups: &dyn Cgroups,
        settings: &Settings,
    ) -> Result<Self, CgroupError> {
        let policies = settings.policies.clone();
        // Without the topology all CPUs count as offline: the order of placement is another, and the allocator has no CPU to give.
        let topology = Topology::read(&roots.sys).unwrap_or_default();
        let mut snapshot = Snapshot::empty(kubelet(settings, root), policies.allocator.source, topology);
        snapshot.slice.exclusive = read_optional_cpus(cgroups, &CgroupPath::slice(), File::CpusExclusive)?;
        snapshot.kubepods = kubepods(cgroups)?;
        let release = std::fs::read_to_string(roots.proc.join("sys/kernel/osrelease"));
        if release.is_ok_and(|release| !isolated_is_safe(release.trim())) {
            snapshot.safe_partition = Partition::Root;
        }
        add_instances(cgroups, &mut snapshot)?;
        Ok(Self {
            facts: Derived::of(&snapshot, &policies),
            snapshot,
            policies,
        })
    }

    /// The CPUs that kubelet's file gives to the container alone; none where it gives it none.
    pub(super) fn kubelets_cpus(&self, candidate: &Candidate) -> CpuSet {
        kubelets_cpus(candidate, &self.snapshot.kubelet)
    }

    /// Whether a container has exclusive CPUs from kubelet, or would be given some by steliad's allocator.
    /// `own_limit`: the container's own CPU limit, in thousandths.
    pub(super) fn can_be_whole(&self, candidate: &Candidate, own_limit: Option<u64>) -> bool {
        let is_allocated = || {
            self.policies.allocator.source == CpuSource::Steliad
                && candidate.cpus.is_empty()
                && is_allocated_by_default(&candidate.origin, own_limit)
        };
        !self.kubelets_cpus(candidate).is_empty() || is_allocated()
    }

    /// Adopt a whole container, and return its exclusive CPUs. Those that are asked about later meet it as an instance.
    ///
    /// # Errors
    /// Why it would not be adopted.
    pub(super) fn adopt_container(&mut self, candidate: &Candidate, rule: &AdoptRule) -> Result<CpuSet, Refusal> {
        let (snapshot, policies) = (&self.snapshot, &self.policies);
        let claim = CheckedClaim {
            isolation: rule.isolation,
            ..CheckedClaim::default()
        };
        let admitted = admit(&claim, candidate, snapshot, &self.facts, &policies.allocator);
        let admitted = admitted.map_err(|error| refusal(&error))?;
        let adopting = whole(rule);
        // Its runtime need not cope with anything.
        let coping = || Coping::Copes;
        let instance = choose_home(admitted, candidate, Some(&adopting), snapshot, policies, coping, None);
        let instance = instance.map_err(|error| refusal(&error))?;
        let exclusive = instance.record.exclusive.clone();
        add(&mut self.snapshot, instance.record);
        self.facts = Derived::of(&self.snapshot, &self.policies);
        Ok(exclusive)
    }

    /// The record that a VM would have with its vCPUs attached. Those that are asked about later meet it as an instance.
    ///
    /// # Errors
    /// Why it would not be adopted.
    pub(super) fn adopt(
        &mut self,
        candidate: &Candidate,
        vm: &AdoptableVm<'_>,
        coping: &dyn Fn() -> Coping,
    ) -> Result<Record, Refusal> {
        let (snapshot, policies) = (&self.snapshot, &self.policies);
        let adopting = adopting(vm);
        // As the daemon's own adoption, it claims nothing.
        let claim = CheckedClaim {
            isolation: vm.rule.isolation,
            ..CheckedClaim::default()
        };
        let admitted = admit(&claim, candidate, snapshot, &self.facts, &policies.allocator);
        let admitted = admitted.map_err(|error| refusal(&error))?;
        let choose = |check: Option<&RuntimeCheck>| {
            let admitted = admitted.clone();
            choose_home(admitted, candidate, Some(&adopting), snapshot, policies, coping, check)
        };
        let instance = choose(None).map_err(|error| refusal(&error))?;
        if let Home::Untried(runtime) = &instance.home {
            let not_tried = Err("it was not tried".to_owned());
            choose(Some(&not_tried)).map_err(|_| {
                let text = format!(
                    "not known before {} was tried, when the first VM is adopted: it can be adopted in place only, where the runtime \
                     copes with threaded cgroups",
                    runtime.binary.display()
                );
                ("Untried".to_owned(), text)
            })?;
        }
        let record = instance.record;
        let attached = adopting.with_vcpus(record.clone(), snapshot, policies);
        add(&mut self.snapshot, record);
        self.facts = Derived::of(&self.snapshot, &self.policies);
        Ok(attached)
    }
}

/// A container that is adopted whole.
fn whole(rule: &AdoptRule) -> Adopting {
    Adopting {
        rule: rule.clone(),
        vmm: None,
        threads: BTreeMap::new(),
        guest: Vec::new(),
        wanted: AdoptedPlacement::default(),
    }
}

fn adopting(vm: &AdoptableVm<'_>) -> Adopting {
    Adopting {
        rule: vm.rule.clone(),
        vmm: Some(vm.process),
        threads: vm.threads.clone(),
        guest: vm.guest.clone(),
        wanted: AdoptedPlacement {
            pinned_cpus: vm.pinned_cpus.clone(),
            policy: vm.policy,
        },
    }
}

/// kubelet's file, as the daemon finds it.
fn kubelet(settings: &Settings, root: &Path) -> Result<CpuManagerState, String> {
    let folder = home::by_setting(&settings.kubelet_root, root, None).map_err(|unclear| unclear.to_string())?;
    let folder = files::below(root, &folder);
    let source = settings.policies.allocator.source;
    if source == CpuSource::Steliad
        && let Some(refused) = refused_beside(&dra::cpu_drivers(root, &folder))
    {
        return Err(refused);
    }
    let path = folder.join(CPU_MANAGER_STATE);
    usable_state(files::bytes(&path, MAX_BYTES), &path, source)
}

/// The cgroup that all pods are in: whether the kernel has partitions shows there.
fn kubepods(cgroups: &dyn Cgroups) -> Result<Option<Level>, CgroupError> {
    let roots = ["kubepods.slice", "kubepods"].map(|name| CgroupPath::root().child(name));
    let Some(path) = roots.into_iter().find(|path| cgroups.exists(path)) else {
        return Ok(None);
    };
    Ok(Some(Level {
        exclusive: read_optional_cpus(cgroups, &path, File::CpusExclusive)?,
        ours: CpuSet::new(),
        path,
    }))
}

/// The instances by their records.
fn add_instances(cgroups: &dyn Cgroups, snapshot: &mut Snapshot) -> Result<(), CgroupError> {
    let slice = CgroupPath::slice();
    let scopes = optional(cgroups.children(&slice))?.unwrap_or_default();
    for name in scopes.into_iter().filter(|name| PodUid::from_scope(name).is_some()) {
        let attributes = cgroups.attributes(&slice.child(&name));
        match attributes.map(|attributes| Record::parse(&attributes)) {
            Ok(Ok(record)) => add(snapshot, record),
            Ok(Err(RecordError::Absent)) => {}
            Ok(Err(error)) => snapshot.unreadable.push((name, error.to_string())),
            Err(error) => snapshot.unreadable.push((name, error.to_string())),
        }
    }
    for pod in pod_cgroups(cgroups)? {
        // Attributes that cannot be read are of no instance that is known here.
        let attributes = cgroups.attributes(&pod).unwrap_or_default();
        for container in RecordPlace::containers(&pod, &attributes) {
            // The record of a container that is gone counts no more.
            if let Ok(Some(record)) = Record::of_container(&container, &attributes)
                && cgroups.exists(&record.origin)
            {
                add(snapshot, record);
            }
        }
    }
    Ok(())
}

fn add(snapshot: &mut Snapshot, record: Record) {
    let tree = Tree::of(&record);
    snapshot.put(Instance {
        populated: true,
        ..Instance::admitted(record, None, tree)
    });
}
