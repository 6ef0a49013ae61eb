//! The containers of this node, their processes, and kubelet's file.

use std::path::{Path, PathBuf};

use stelia_adopt::{Names, NotAdopted, Vm, is_vcpu, is_vmm, rules_for, vm};
use stelia_cpus::CpuSet;
use stelia_kubelet::checkpoint::{CPU_MANAGER_STATE, MAX_BYTES};
use stelia_kubelet::{ContainerCgroup, CpuManagerState, home};
use stelia_node::cgroup::{CgroupError, CgroupPath, Cgroups, File, KernelCgroups, populated, read_cpus};
use stelia_node::containers::{self, LiveContainer};
use stelia_node::proc::{KernelProcs, Procs};
use stelia_node::processes::{self, Process};
use stelia_node::{oci, places, runtime};
use stelia_record::{RecordPlace, SCHEMA_ATTRIBUTE};
use stelia_settings::{AdoptPartition, AdoptRule, Partition, ReadyMade, Settings};

use super::admission::{AdoptionCandidate, HOUSEKEEPING, HomeFacts, Refusal, exclusive, homeless, refused};
use super::{Candidate, Preview, users};
use crate::client::Failure;
use crate::input;
use crate::pod::{Pod, Pods};
use crate::threads::Roots;

/// What is the same for all containers.
struct Node {
    cgroups: KernelCgroups,
    procs: KernelProcs,
    root: PathBuf,
    run: PathBuf,
    rules: Vec<AdoptRule>,
    /// Those that would find VMs without a rule.
    ready_made: Vec<AdoptRule>,
    kubelet: Result<CpuManagerState, String>,
    pods: Pods,
    /// Why no VM gets a partition.
    no_partition: Option<&'static str>,
    /// `placement` of the settings.
    placement: &'static str,
}

/// Reads the node below `root` (`/`).
///
/// # Errors
/// The daemon's configuration is not valid, or the cgroups cannot be read.
pub(crate) fn gather(root: &Path, roots: &Roots) -> Result<Preview, Failure> {
    let loaded = stelia_settings::load(root).map_err(|cause| Failure::Other(cause.to_string()))?;
    let settings = loaded.settings;
    places::add_unit_folders(settings.runtime_state.clone());
    let node = Node {
        cgroups: KernelCgroups::new(&roots.cgroup),
        procs: KernelProcs::new(&roots.proc),
        root: root.to_owned(),
        run: root.join("run"),
        no_partition: (settings.policies.partition == Some(Partition::Member)).then_some("setting"),
        ready_made: ReadyMade::ALL.into_iter().filter_map(AdoptRule::ready_made).collect(),
        kubelet: kubelet(&settings, root),
        pods: Pods::by_logs(root),
        placement: settings.policies.placement.name(),
        rules: settings.policies.adopt,
    };
    let failed = |cause: CgroupError| Failure::Other(cause.to_string());
    let mut vms = Vec::new();
    // Containers whose VMs have a line, or are instances.
    let mut told: Vec<CgroupPath> = vec![CgroupPath::slice()];
    for (origin, cgroup) in containers::all_containers(&node.cgroups).map_err(failed)? {
        match node.candidate(&origin, &cgroup) {
            Ok(Some(found)) => {
                vms.push(found);
                told.push(origin);
            }
            Ok(None) if node.is_instance(&origin, &cgroup) => told.push(origin),
            Ok(None) => {}
            // The container ended meanwhile.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let all: Vec<&AdoptRule> = node.rules.iter().chain(&node.ready_made).collect();
    for process in users::find(&roots.proc, &node.procs, &all) {
        if told.iter().any(|told| process.cgroup.is_within(told)) {
            continue;
        }
        told.push(process.cgroup.clone());
        let refusal = users::misplaced(&process).unwrap_or_else(|| {
            let text = format!(
                "process {} runs a VM, and no rule knows it by its names: a rule needs its vmm and threads",
                process.pid
            );
            ("UnknownVmm".to_owned(), text)
        });
        vms.push(users::candidate(&process, refusal));
    }
    let rules = node.rules.iter().map(|rule| rule.name.clone()).collect();
    Ok(Preview::new(rules, vms))
}

/// kubelet's file, as the daemon finds it.
fn kubelet(settings: &Settings, root: &Path) -> Result<CpuManagerState, String> {
    let folder = home::by_setting(&settings.kubelet_root, root, None).map_err(|unclear| unclear.to_string())?;
    let folder = match folder.starts_with(root) {
        true => folder,
        false => root.join(folder.strip_prefix("/").unwrap_or(&folder)),
    };
    let path = folder.join(CPU_MANAGER_STATE);
    let about = |cause: String| format!("{}: {cause}", path.display());
    let bytes = input::bytes(&path, MAX_BYTES).map_err(|cause| about(cause.to_string()))?;
    CpuManagerState::parse(&bytes).map_err(|cause| about(cause.to_string()))
}

/// No rule finds a VM.
struct Missing {
    /// The first rule of the container; empty without one.
    rule: String,
    refusal: Refusal,
    /// It is worth a line although no VM was found.
    is_shown: bool,
    /// The container refuses.
    is_refused: bool,
}

impl Node {
    /// What becomes of a container; `None` for one that has no VM.
    fn candidate(&self, origin: &CgroupPath, cgroup: &ContainerCgroup) -> Result<Option<Candidate>, CgroupError> {
        if !populated(&self.cgroups, origin)? {
            return Ok(None);
        }
        let written = runtime::container(&self.run, cgroup);
        let names = Names {
            pod: written.pod.clone(),
            container: written.name.clone(),
            refuses: written.refuses_adoption,
        };
        let looked = self.style(origin, cgroup, &written)?;
        let cpus = exclusive(&looked, &self.kubelet);
        let known = cpus.clone().unwrap_or_default();
        let mut candidate = Candidate {
            pod: match &names.pod {
                Some(name) => Pod {
                    pod_uid: cgroup.pod.to_string(),
                    pod_namespace: name.namespace().to_owned(),
                    pod_name: name.name().to_owned(),
                },
                None => self.pods.get(cgroup.pod.as_str()),
            },
            container: written.name.unwrap_or_else(|| cgroup.container_id.clone()),
            exclusive_cpus: known.to_string(),
            housekeeping: looked.children.iter().any(|name| name == HOUSEKEEPING),
            ..Candidate::default()
        };
        match self.by_rules(origin, &names, &known) {
            Ok((vm, found)) => {
                candidate.has(&vm, &found, known.len());
                let homeless = || homeless(&looked, &vm, &known, &self.home_facts(cgroup));
                match refused(&looked).or_else(|| cpus.err()).or_else(homeless) {
                    Some(refusal) => candidate.refused(refusal),
                    None => candidate.adopted(&vm, self.placement),
                }
            }
            // A registered VM's processes are not in its container's cgroup any more.
            Err(missing) if looked.is_instance => match refused(&looked) {
                Some(refusal) if !missing.rule.is_empty() => {
                    candidate.rule = missing.rule;
                    candidate.refused(refusal);
                }
                _ => return Ok(None),
            },
            Err(missing) if missing.is_shown => {
                candidate.rule = missing.rule;
                candidate.refused(missing.refusal);
            }
            Err(missing) => {
                let all: Vec<&AdoptRule> = self.ready_made.iter().collect();
                let found = self.processes(origin, &all).unwrap_or_default();
                let vm = match vm(&all, &found, &known) {
                    Ok(vm) => vm,
                    Err(
                        NotAdopted::NoRule
                        | NotAdopted::NoVmm { .. }
                        | NotAdopted::NamesDiffer { .. }
                        | NotAdopted::NoVcpus { .. },
                    ) => {
                        return Ok(None);
                    }
                    // A VM that the ready-made rules would not adopt either.
                    Err(why) => {
                        candidate.refused((why.name().to_owned(), why.to_string()));
                        return Ok(Some(candidate));
                    }
                };
                candidate.has(&vm, &found, known.len());
                candidate.ready_made = match missing.is_refused {
                    true => String::new(),
                    false => self.suggested(&names, &vm),
                };
                candidate.rule = missing.rule;
                candidate.tree = String::new();
                candidate.refused(missing.refusal);
            }
        }
        Ok(Some(candidate))
    }

    /// The VM that a rule finds, and the processes that it was found among.
    fn by_rules(&self, origin: &CgroupPath, names: &Names, cpus: &CpuSet) -> Result<(Vm<'_>, Vec<Process>), Missing> {
        let named = |why: &NotAdopted| (why.name().to_owned(), why.to_string());
        let rules = rules_for(names, &self.rules).map_err(|why| Missing {
            rule: String::new(),
            is_shown: false,
            is_refused: matches!(why, NotAdopted::ContainerRefuses { .. }),
            refusal: named(&why),
        })?;
        let missing = |is_shown, refusal| Missing {
            rule: rules.first().map(|rule| rule.name.clone()).unwrap_or_default(),
            is_shown,
            is_refused: false,
            refusal,
        };
        let found = self
            .processes(origin, &rules)
            .map_err(|refusal| missing(true, refusal))?;
        match vm(&rules, &found, cpus) {
            Ok(vm) => Ok((vm, found)),
            Err(why) => {
                // A rule of every container says nothing of those without a VMM.
                let is_shown = !matches!(why, NotAdopted::NoVmm { .. }) || rules.iter().any(|rule| is_particular(rule));
                Err(missing(is_shown, named(&why)))
            }
        }
    }

    /// The ready-made rule for a VM: the first whose names fit too.
    fn suggested(&self, names: &Names, vm: &Vm<'_>) -> String {
        let fits = rules_for(names, &self.ready_made).unwrap_or_default();
        let same = fits
            .into_iter()
            .find(|rule| rule.vmm == vm.rule.vmm && rule.threads == vm.rule.threads);
        same.map(|rule| rule.name.clone()).unwrap_or_default()
    }

    fn processes(&self, origin: &CgroupPath, rules: &[&AdoptRule]) -> Result<Vec<Process>, Refusal> {
        let vmm = |name: &str, program: &str| is_vmm(rules, name, program);
        let vcpu = |name: &str| is_vcpu(rules, name);
        let found = processes::candidates(&self.cgroups, &self.procs, origin, &vmm, &vcpu);
        found.map_err(|cause| ("Unreadable".to_owned(), cause.to_string()))
    }

    fn style<'a>(
        &self,
        origin: &CgroupPath,
        cgroup: &'a ContainerCgroup,
        written: &runtime::Container,
    ) -> Result<AdoptionCandidate<'a>, CgroupError> {
        let cgroups = &self.cgroups;
        let own = LiveContainer {
            id: cgroup.container_id.clone(),
            name: written.name.clone(),
            cpus: read_cpus(cgroups, origin, File::Cpus)?,
            request: containers::container_request(cgroups, origin, written.shares)?,
        };
        let is_instance = self.is_instance(origin, cgroup);
        let mut children = Vec::new();
        for name in cgroups.children(origin)? {
            if populated(cgroups, &origin.child(&name))? {
                children.push(name);
            }
        }
        Ok(AdoptionCandidate {
            cgroup,
            own,
            others: containers::live_containers(cgroups, &self.run, &cgroup.pod, Some(&cgroup.container_id))?,
            is_instance,
            children,
            numbers: self.numbers(origin),
        })
    }

    fn is_instance(&self, origin: &CgroupPath, cgroup: &ContainerCgroup) -> bool {
        let cgroups = &self.cgroups;
        let scope = CgroupPath::slice().child(&cgroup.pod.scope());
        // In place the record is on the pod's cgroup.
        let place = RecordPlace::on_pod(&containers::container_scope(origin));
        let schema = cgroups.attribute(place.cgroup(), &place.name(SCHEMA_ATTRIBUTE));
        cgroups.exists(&scope) || schema.is_ok_and(|found| found.is_some())
    }

    fn home_facts(&self, cgroup: &ContainerCgroup) -> HomeFacts {
        HomeFacts {
            no_partition: self.no_partition,
            coping: oci::coping(&self.root, &self.root.join("run"), &cgroup.container_id),
        }
    }

    /// The number of each process in every PID namespace. One that ended meanwhile is left out.
    fn numbers(&self, origin: &CgroupPath) -> Vec<Vec<i32>> {
        let text = self.cgroups.read(origin, File::Procs).unwrap_or_default();
        let pids = text
            .lines()
            .take(processes::MAX_PROCESSES)
            .filter_map(|line| line.parse().ok());
        pids.filter_map(|pid| self.procs.numbers(pid).ok()).collect()
    }
}

/// Whether the rule names more than a program.
fn is_particular(rule: &AdoptRule) -> bool {
    let lists = [&rule.namespaces, &rule.pods, &rule.containers];
    lists
        .iter()
        .any(|list| list.iter().all(|pattern| pattern.as_str() != "*"))
}

impl Candidate {
    pub(super) fn refused(&mut self, (name, text): Refusal) {
        self.reason = Some(name);
        self.why = text;
    }

    fn has(&mut self, vm: &Vm<'_>, found: &[Process], cpus: usize) {
        let process = found.iter().find(|process| process.task == vm.process);
        let program = process.and_then(|process| process.command.first());
        let program = program.map(|path| path.rsplit('/').next().unwrap_or_default().to_owned());
        self.rule = vm.rule.name.clone();
        self.vmm = program;
        self.vmm_pid = Some(vm.process.id);
        self.vcpus = Some(vm.threads.len());
        self.spare_cpus = cpus.saturating_sub(vm.threads.len());
        self.tree = vm.rule.tree.name().to_owned();
    }

    fn adopted(&mut self, vm: &Vm<'_>, placement: &str) {
        let ours = vm.policy.map_or(placement, |policy| policy.name());
        self.would_be_adopted = true;
        self.why = match (&vm.pinned_cpus, &vm.note) {
            (Some(_), _) => "its vCPUs keep the CPUs that they are pinned to".to_owned(),
            (None, Some(note)) => format!("placed by {ours}: {note}"),
            (None, None) => format!("placed by {ours}"),
        };
        if vm.rule.partition == AdoptPartition::Member {
            self.why += "; contained, without a partition";
        }
        let kept = vm.pinned_cpus.as_ref();
        self.placement = kept.map_or(ours, |_| "keep").to_owned();
        self.kept_cpus = kept.map(|pins| pins.values().copied().collect()).unwrap_or_default();
    }
}
