//! Scans a container: finds its rules, and whether they adopt its VM or the whole container. Nothing is changed. The pod controls the
//! names of its processes and threads, so they only select among that container's own threads.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_decide::AdoptedPlacement;
use stelia_decide::admission::{Adopting, is_allocated_by_default};
use stelia_decide::adopt::{Names, NotAdopted, RulesFor, is_vcpu, is_vmm, rules_for, vm};
use stelia_kernel::cgroup::{CgroupPath, File, populated, read_cpus};
use stelia_kernel::clock::now_us;
use stelia_kernel::proc::TaskId;
use stelia_kernel::vmm_processes::{self, Process};
use stelia_kernel::{System, containers, runtime_config};
use stelia_kubelet::{ContainerCgroup, PodName, PodUid};
use stelia_model as model;
use stelia_model::record::Tree;
use stelia_settings::AdoptRule;

use super::sweep::Listing;
use crate::engine::Handle;

/// A VM that matches a rule, or a container that is adopted whole, with everything that the engine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Adoptable {
    pub(super) pod: PodUid,
    pub(super) pod_name: Option<PodName>,
    pub(super) container: String,
    /// The VM, or its rule alone where the whole container is adopted.
    pub(super) vm: Adopting,
}

impl Adoptable {
    fn new(container: &ContainerCgroup, names: &Names, vm: Adopting) -> Self {
        Self {
            pod: container.pod.clone(),
            pod_name: names.pod.clone(),
            container: names.container.clone().unwrap_or_default(),
            vm,
        }
    }

    /// Whether another scan has the same threads and pins.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let (one, other) = (&self.vm, &other.vm);
        one.vmm == other.vmm && one.threads == other.threads && one.wanted == other.wanted
    }

    /// The VM as one that is not adopted, with the reason.
    pub(super) fn refused(&self, reason: &str, text: String) -> model::Unadopted {
        model::Unadopted {
            pod: self.pod.clone(),
            pod_name: self.pod_name.clone(),
            container: self.container.clone(),
            rule: self.vm.rule.name.clone(),
            reason: reason.to_owned(),
            text,
            since_us: now_us(),
        }
    }
}

/// The result of a scan.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScanOutcome {
    /// No rule matches the container.
    NoRule,
    /// The container is gone, registered itself, or its VM is adopted as it is.
    Nothing,
    Refused(Box<model::Unadopted>),
    /// It has no complete VM yet; with the reason, if a process in it looks like a VMM.
    Waiting(Option<Box<model::Unadopted>>),
    Adoptable(Box<Adoptable>),
}

/// The containers of this node that the listing is of.
pub(super) fn containers_with_rule(
    system: &System,
    rules: &[AdoptRule],
    listing: Listing,
) -> Vec<(CgroupPath, ContainerCgroup)> {
    let all = containers::all_containers(&*system.cgroups).unwrap_or_else(|error| {
        tracing::warn!("VMs to adopt are not looked for: {error}");
        Vec::new()
    });
    let has_rule = |(whole, container): &(CgroupPath, ContainerCgroup)| {
        let is_alive = populated(&*system.cgroups, whole).unwrap_or_default();
        is_alive
            && match rules_for(&names(system, container), rules) {
                Ok(rules) => listing == Listing::All || matches!(RulesFor::of(&rules), RulesFor::Container(_)),
                Err(why) => {
                    listing == Listing::All
                        && !matches!(why, NotAdopted::NoRule | NotAdopted::Unnamed | NotAdopted::Sandbox)
                }
            }
    };
    with_processes(system, all.into_iter().filter(has_rule))
}

/// These containers by the cgroup that their processes are in, where they are still there.
fn with_processes(
    system: &System,
    found: impl Iterator<Item = (CgroupPath, ContainerCgroup)>,
) -> Vec<(CgroupPath, ContainerCgroup)> {
    let (cgroups, node) = (&*system.cgroups, system.root());
    found
        .filter_map(|(whole, _)| containers::process_cgroup(cgroups, node, &whole).ok().flatten())
        .collect()
}

/// The containers of one pod that a rule adopts whole, including those being created.
pub(super) fn whole_containers_of(
    system: &System,
    rules: &[AdoptRule],
    pod: &PodUid,
) -> Vec<(CgroupPath, ContainerCgroup)> {
    // A pod whose cgroup is gone has none.
    let all = containers::pod_containers(&*system.cgroups, pod).unwrap_or_default();
    let is_whole = |(_, container): &(CgroupPath, ContainerCgroup)| {
        let rules = rules_for(&names(system, container), rules);
        rules.is_ok_and(|rules| matches!(RulesFor::of(&rules), RulesFor::Container(_)))
    };
    with_processes(system, all.into_iter().filter(is_whole))
}

fn names(system: &System, container: &ContainerCgroup) -> Names {
    let state = runtime_config::container(&system.run, container);
    Names {
        pod: state.pod,
        container: state.name,
        refuses: state.refuses_adoption,
    }
}

/// Scan a container.
pub(super) fn container(
    engine: &Handle,
    rules: &[AdoptRule],
    origin: &CgroupPath,
    container: &ContainerCgroup,
) -> ScanOutcome {
    let system = engine.system();
    let names = names(system, container);
    let refused = |rule: &str, reason: &str, text: String| {
        Box::new(model::Unadopted {
            pod: container.pod.clone(),
            pod_name: names.pod.clone(),
            container: names.container.clone().unwrap_or_default(),
            rule: rule.to_owned(),
            reason: reason.to_owned(),
            text,
            since_us: now_us(),
        })
    };
    let refuses = matches!(rules_for(&names, rules), Err(NotAdopted::ContainerRefuses { .. }));
    let without_refusal = Names {
        refuses: names.refuses && !refuses,
        ..names.clone()
    };
    let Ok(rules) = rules_for(&without_refusal, rules) else {
        return ScanOutcome::NoRule;
    };
    let rule = rules.first().map(|rule| rule.name.as_str()).unwrap_or_default();
    let view = engine.view();
    let known = view.instances.get(&container.pod);
    // A pod that registered itself is not adopted, nor is one whose instance is another container.
    if known.is_some_and(|known| known.adopted_by.is_none() || known.origin != *origin) {
        return ScanOutcome::Nothing;
    }
    let rules = match RulesFor::of(&rules) {
        RulesFor::Vm(rules) => rules,
        RulesFor::Container(_) if known.is_some() => return ScanOutcome::Nothing,
        RulesFor::Container(_) if refuses => return ScanOutcome::Waiting(None),
        RulesFor::Container(whole) => {
            return whole_container(engine, origin, container, &names, whole)
                .unwrap_or_else(|text| ScanOutcome::Refused(refused(rule, "Unreadable", text)));
        }
    };
    let read = match read(system, origin, known.map(|known| &**known), &rules) {
        Ok(Some(read)) => read,
        Ok(None) => return ScanOutcome::Nothing,
        Err(text) => return ScanOutcome::Refused(refused(rule, "Unreadable", text)),
    };
    let (processes, cpus) = read;
    match vm(&rules, &processes, &cpus) {
        // The container's refusal is only reported if it has a VM.
        Ok(vm) if refuses => {
            let rule = vm.rule.name.clone();
            let why = NotAdopted::ContainerRefuses { rule: rule.clone() };
            ScanOutcome::Refused(refused(&rule, why.name(), why.to_string()))
        }
        Err(_) if refuses => ScanOutcome::Waiting(None),
        Ok(vm) if known.is_some_and(|known| has_attached(known, &vm)) => ScanOutcome::Nothing,
        Ok(vm) => ScanOutcome::Adoptable(Box::new(Adoptable::new(container, &names, vm))),
        Err(why) if why.may_pass() => {
            let is_vmm = !matches!(why, NotAdopted::NoVmm { .. });
            ScanOutcome::Waiting(is_vmm.then(|| refused(rule, why.name(), why.to_string())))
        }
        Err(why) => ScanOutcome::Refused(refused(rule, why.name(), why.to_string())),
    }
}

/// Whether the instance has exactly the vCPU threads of this VM.
fn has_attached(instance: &model::Instance, vm: &Adopting) -> bool {
    let threads = instance
        .vcpus
        .iter()
        .map(|pinned| (pinned.thread.role.into(), pinned.thread.task));
    threads.collect::<BTreeMap<u32, TaskId>>() == vm.threads
}

/// A container that is to be adopted whole, if it has exclusive CPUs from kubelet or can have them from steliad's allocator.
fn whole_container(
    engine: &Handle,
    origin: &CgroupPath,
    container: &ContainerCgroup,
    names: &Names,
    rule: &AdoptRule,
) -> Result<ScanOutcome, String> {
    let cgroups = &*engine.system().cgroups;
    let whole = containers::container_scope(origin);
    let cpus = match read_cpus(cgroups, &whole, File::Cpus) {
        Ok(cpus) => cpus,
        Err(error) if error.is_gone() => return Ok(ScanOutcome::Nothing),
        Err(error) => return Err(error.to_string()),
    };
    let view = engine.view();
    let has_cpus = match (cpus.is_empty(), view.cpu_source.allocates()) {
        (true, true) => {
            // Its own limit: the pod's is of all its containers.
            let limit = containers::least_limit_milli(cgroups, [whole]);
            let limit = limit.map_err(|error| error.to_string())?;
            is_allocated_by_default(origin, limit)
        }
        // The limit is not read where kubelet alone gives CPUs.
        (true, false) => false,
        (false, _) => cpus.is_subset(&view.kubelet_cpus),
    };
    if !has_cpus {
        return Ok(ScanOutcome::Waiting(None));
    }
    let vm = Adopting {
        rule: rule.clone(),
        vmm: None,
        threads: BTreeMap::new(),
        guest: Vec::new(),
        wanted: AdoptedPlacement::default(),
    };
    Ok(ScanOutcome::Adoptable(Box::new(Adoptable::new(container, names, vm))))
}

/// Reads the container's processes and CPUs. `None` if the container is gone.
fn read(
    system: &System,
    origin: &CgroupPath,
    known: Option<&model::Instance>,
    rules: &[&AdoptRule],
) -> Result<Option<(Vec<Process>, CpuSet)>, String> {
    let cgroups = &*system.cgroups;
    let cpus = match read_cpus(cgroups, &containers::container_scope(origin), File::Cpus) {
        Ok(cpus) => cpus,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    // The processes of an instance are in its scope below stelia.slice.
    let place = known.map_or_else(
        || origin.clone(),
        |known| Tree::at(known.scope.clone(), known.isolation).inner().clone(),
    );
    let vmm = |name: &str, program: &str| is_vmm(rules, name, program);
    let vcpu = |name: &str| is_vcpu(rules, name);
    let processes = vmm_processes::candidates(cgroups, &*system.procs, &place, &vmm, &vcpu);
    let processes = processes.map_err(|error| error.to_string())?;
    Ok(Some((processes, cpus)))
}
