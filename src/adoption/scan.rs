//! Scans a container: finds the rules that match it, and the VM in it. Nothing is changed. The pod controls the names of its processes and
//! threads, so they only select among that container's own threads.

use std::collections::BTreeMap;

use stelia_adopt::{Names, NotAdopted, is_vcpu, is_vmm, rules_for, vm};
use stelia_decide::AdoptedPlacement;
use stelia_kubelet::{ContainerCgroup, PodName, PodUid};
use stelia_model as model;
use stelia_node::cgroup::{CgroupPath, File, populated, read_cpus};
use stelia_node::proc::TaskId;
use stelia_node::processes::{self, Process};
use stelia_node::{System, containers, runtime};
use stelia_record::{Tree, Vcpu};
use stelia_settings::{AdoptPlacement, AdoptRule};

use crate::engine::{Handle, now_us};

/// A VM that matches a rule, with everything that the engine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdoptableVm {
    pub(super) pod: PodUid,
    pub(super) pod_name: Option<PodName>,
    pub(super) container: String,
    pub(super) rule: AdoptRule,
    /// The VMM.
    pub(super) process: TaskId,
    /// Its vCPU threads by index.
    pub(super) threads: BTreeMap<u32, TaskId>,
    pub(super) guest: Vec<Vcpu>,
    pub(super) wanted: AdoptedPlacement,
    /// Whether its vCPUs are to stay where they are pinned, but are not each pinned to a CPU.
    pub(super) is_unpinned: bool,
    /// Whether its command line has the number of vCPUs.
    pub(super) is_counted: bool,
}

impl AdoptableVm {
    /// Whether another scan has the same threads and pins.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.process == other.process && self.threads == other.threads && self.wanted == other.wanted
    }

    /// The VM as one that is not adopted, with the reason.
    pub(super) fn refused(&self, reason: &str, text: String) -> model::Unadopted {
        model::Unadopted {
            pod: self.pod.clone(),
            pod_name: self.pod_name.clone(),
            container: self.container.clone(),
            rule: self.rule.name.clone(),
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
    Vm(Box<AdoptableVm>),
}

/// The containers of this node that match a rule.
pub(super) fn containers_with_rule(system: &System, rules: &[AdoptRule]) -> Vec<(CgroupPath, ContainerCgroup)> {
    let all = containers::all_containers(&*system.cgroups).unwrap_or_else(|error| {
        tracing::warn!("VMs to adopt are not looked for: {error}");
        Vec::new()
    });
    let has_rule = |(origin, container): &(CgroupPath, ContainerCgroup)| {
        let is_alive = populated(&*system.cgroups, origin).unwrap_or_default();
        is_alive
            && !matches!(
                rules_for(&names(system, container), rules),
                Err(NotAdopted::NoRule | NotAdopted::Unnamed)
            )
    };
    all.into_iter().filter(has_rule).collect()
}

fn names(system: &System, container: &ContainerCgroup) -> Names {
    let state = runtime::container(&system.run, container);
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
    let read = match read(system, origin, known.map(|known| &**known), &rules) {
        Ok(Some(read)) => read,
        Ok(None) => return ScanOutcome::Nothing,
        Err(text) => return ScanOutcome::Refused(refused(rule, "Unreadable", text)),
    };
    let ContainerProcesses { processes, cpus } = read;
    match vm(&rules, &processes, &cpus) {
        // The container's refusal is only reported if it has a VM.
        Ok(vm) if refuses => {
            let rule = vm.rule.name.clone();
            let why = NotAdopted::ContainerRefuses { rule: rule.clone() };
            ScanOutcome::Refused(refused(&rule, why.name(), why.to_string()))
        }
        Err(_) if refuses => ScanOutcome::Waiting(None),
        Ok(vm) => {
            let is_same = |known: &model::Instance| {
                let threads = known
                    .vcpus
                    .iter()
                    .map(|pinned| (pinned.thread.role.into(), pinned.thread.task));
                threads.collect::<BTreeMap<u32, TaskId>>() == vm.threads
            };
            if known.is_some_and(|known| is_same(known)) {
                return ScanOutcome::Nothing;
            }
            ScanOutcome::Vm(Box::new(AdoptableVm {
                pod: container.pod.clone(),
                pod_name: names.pod.clone(),
                container: names.container.clone().unwrap_or_default(),
                is_unpinned: vm.rule.placement == AdoptPlacement::Keep && vm.pinned_cpus.is_none(),
                is_counted: vm.guest.iter().any(|vcpu| !vcpu.props.is_empty()),
                rule: vm.rule.clone(),
                process: vm.process,
                threads: vm.threads,
                guest: vm.guest,
                wanted: AdoptedPlacement {
                    pinned_cpus: vm.pinned_cpus,
                    policy: vm.policy,
                },
            }))
        }
        Err(why) if why.may_pass() => {
            let is_vmm = !matches!(why, NotAdopted::NoVmm { .. });
            ScanOutcome::Waiting(is_vmm.then(|| refused(rule, why.name(), why.to_string())))
        }
        Err(why) => ScanOutcome::Refused(refused(rule, why.name(), why.to_string())),
    }
}

/// The processes of a container, and its CPUs.
struct ContainerProcesses {
    processes: Vec<Process>,
    /// The container's CPUs.
    cpus: stelia_cpus::CpuSet,
}

/// Reads the container's processes; `None` if the container is gone.
fn read(
    system: &System,
    origin: &CgroupPath,
    known: Option<&model::Instance>,
    rules: &[&AdoptRule],
) -> Result<Option<ContainerProcesses>, String> {
    let cgroups = &*system.cgroups;
    let cpus = match read_cpus(cgroups, origin, File::Cpus) {
        Ok(cpus) => cpus,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    // The processes of an instance are in its scope below stelia.slice.
    let place = known.map_or_else(|| origin.clone(), |known| Tree::at(known.scope.clone()).inner().clone());
    let vmm = |name: &str, program: &str| is_vmm(rules, name, program);
    let vcpu = |name: &str| is_vcpu(rules, name);
    let processes = processes::candidates(cgroups, &*system.procs, &place, &vmm, &vcpu);
    let processes = processes.map_err(|error| error.to_string())?;
    Ok(Some(ContainerProcesses { processes, cpus }))
}
