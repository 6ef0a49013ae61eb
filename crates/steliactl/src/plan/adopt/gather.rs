//! The containers of this node and their VMs, by the rules and by what the daemon's admission says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stelia_cpus::CpuSet;
use stelia_decide::admission::Candidate;
use stelia_decide::adopt::{AdoptableVm, Names, NotAdopted, RulesFor, is_vcpu, is_vmm, rules_for, vm};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, KernelCgroups, populated};
use stelia_kernel::proc::KernelProcs;
use stelia_kernel::vmm_processes::{self, Process};
use stelia_kernel::{containers, oci, runtime_config, runtime_folders};
use stelia_kubelet::ContainerCgroup;
use stelia_model::record::{Record, RecordPlace, SCHEMA_ATTRIBUTE};
use stelia_settings::{AdoptPartition, AdoptPlacement, AdoptRule, Isolation, ReadyMade};

use super::admission::{Admission, Refusal, instance_exists, unpartitioned};
use super::{Preview, VmLine, container, users};
use crate::shared::daemon::{Failure, Pod, Pods};
use crate::shared::kernel::Roots;

/// What is the same for all containers.
struct Node {
    cgroups: KernelCgroups,
    procs: KernelProcs,
    root: PathBuf,
    run: PathBuf,
    rules: Vec<AdoptRule>,
    /// Those that would find VMs without a rule.
    ready_made: Vec<AdoptRule>,
    pods: Pods,
}

/// Reads the node below `root` (`/`).
///
/// # Errors
/// The daemon's configuration is not valid, or the cgroups cannot be read.
pub(crate) fn gather(root: &Path, roots: &Roots) -> Result<Preview, Failure> {
    let loaded = stelia_settings::load(root).map_err(|cause| Failure::Other(cause.to_string()))?;
    let settings = loaded.settings;
    runtime_folders::set_runtime_state_folders(settings.runtime_state.clone());
    let failed = |cause: CgroupError| Failure::Other(cause.to_string());
    let cgroups = KernelCgroups::new(&roots.cgroup);
    let mut admission = Admission::read(root, roots, &cgroups, &settings).map_err(failed)?;
    let node = Node {
        cgroups,
        procs: KernelProcs::new(&roots.proc),
        root: root.to_owned(),
        run: root.join("run"),
        ready_made: ReadyMade::ALL.into_iter().filter_map(AdoptRule::ready_made).collect(),
        pods: Pods::by_logs(root),
        rules: settings.policies.adopt,
    };
    let mut vms = Vec::new();
    // Containers whose VMs have a line, or are instances.
    let mut told: Vec<CgroupPath> = vec![CgroupPath::slice()];
    for (whole, _) in containers::all_containers(&node.cgroups).map_err(failed)? {
        let found = containers::process_cgroup(&node.cgroups, &node.root, &whole).map_err(failed)?;
        let Some((origin, cgroup)) = found else { continue };
        match node.line(&mut admission, &origin, &cgroup) {
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
        vms.push(users::line(&process, refusal));
    }
    let rules = node.rules.iter().map(|rule| rule.name.clone()).collect();
    Ok(Preview::new(rules, vms))
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
    fn line(
        &self,
        admission: &mut Admission,
        origin: &CgroupPath,
        cgroup: &ContainerCgroup,
    ) -> Result<Option<VmLine>, CgroupError> {
        if !populated(&self.cgroups, origin)? {
            return Ok(None);
        }
        let written = runtime_config::container(&self.run, cgroup);
        let names = Names {
            pod: written.pod.clone(),
            container: written.name.clone(),
            refuses: written.refuses_adoption,
        };
        let candidate = container::candidate(&self.cgroups, &self.procs, &self.run, origin, cgroup, &written)?;
        let exclusive = admission.kubelets_cpus(&candidate);
        let is_instance = self.is_instance(origin, cgroup);
        let mut line = VmLine {
            pod: match &names.pod {
                Some(name) => Pod::new(&cgroup.pod, Some(name)),
                None => self.pods.get(cgroup.pod.as_str()),
            },
            container: written.name.unwrap_or_else(|| cgroup.container_id.clone()),
            exclusive_cpus: exclusive.to_string(),
            housekeeping: candidate.housekeeping,
            ..VmLine::default()
        };
        if let Ok(rules) = rules_for(&names, &self.rules)
            && let RulesFor::Container(rule) = RulesFor::of(&rules)
        {
            // A container that neither has nor can have exclusive CPUs is none that such a rule is for.
            let own_limit = containers::least_limit_milli(&self.cgroups, [containers::container_scope(origin)])?;
            if !is_instance && !admission.can_be_whole(&candidate, own_limit) {
                return Ok(None);
            }
            line.rule.clone_from(&rule.name);
            rule.isolation.name().clone_into(&mut line.isolation);
            if is_instance {
                line.refused(instance_exists())
            } else {
                match unpartitioned(&self.cgroups, origin)?.and_then(|()| admission.adopt_container(&candidate, rule)) {
                    Ok(cpus) => {
                        line.would_be_adopted = true;
                        line.exclusive_cpus = cpus.to_string();
                        "all tasks of the container share its CPUs".clone_into(&mut line.why);
                    }
                    Err(refusal) => line.refused(refusal),
                }
            }
            return Ok(Some(line));
        }
        match self.by_rules(origin, &names, &candidate.cpus) {
            Ok((vm, found)) => {
                line.has(&vm, &found, exclusive.len());
                if is_instance {
                    line.refused(instance_exists());
                    return Ok(Some(line));
                }
                let candidate = Candidate {
                    anchor: container::anchor(&self.procs, &candidate, vm.process),
                    ..candidate
                };
                let coping = || oci::coping(&self.root, &self.run, &cgroup.container_id);
                let allowed = unpartitioned(&self.cgroups, origin)?;
                match allowed.and_then(|()| admission.adopt(&candidate, &vm, &coping)) {
                    Ok(record) => line.adopted(&vm, &record),
                    Err(refusal) => line.refused(refusal),
                }
            }
            // A registered VM's processes are not in its container's cgroup any more.
            Err(missing) if is_instance && missing.rule.is_empty() => return Ok(None),
            Err(missing) if is_instance => {
                line.rule = missing.rule;
                line.refused(instance_exists());
            }
            Err(missing) if missing.is_shown => {
                line.rule = missing.rule;
                line.refused(missing.refusal);
            }
            Err(missing) => return Ok(self.without_rule(origin, &names, &candidate.cpus, missing, line)),
        }
        Ok(Some(line))
    }

    /// The line of a container whose rules, if any, find no VM; `None` where the ready-made ones find none either.
    fn without_rule(
        &self,
        origin: &CgroupPath,
        names: &Names,
        cpus: &CpuSet,
        missing: Missing,
        mut line: VmLine,
    ) -> Option<VmLine> {
        let all: Vec<&AdoptRule> = self.ready_made.iter().collect();
        let found = self.processes(origin, &all).unwrap_or_default();
        let vm = match vm(&all, &found, cpus) {
            Ok(vm) => vm,
            Err(
                NotAdopted::NoRule
                | NotAdopted::NoVmm { .. }
                | NotAdopted::NamesDiffer { .. }
                | NotAdopted::NoVcpus { .. },
            ) => return None,
            // A VM that the ready-made rules would not adopt either.
            Err(why) => {
                line.refused((why.name().to_owned(), why.to_string()));
                return Some(line);
            }
        };
        let exclusive: CpuSet = line.exclusive_cpus.parse().unwrap_or_default();
        line.has(&vm, &found, exclusive.len());
        line.ready_made = if missing.is_refused {
            String::new()
        } else {
            self.suggested(names, &vm)
        };
        line.rule = missing.rule;
        line.tree = String::new();
        line.isolation = String::new();
        line.refused(missing.refusal);
        Some(line)
    }

    /// The VM that a rule finds, and the processes that it was found among.
    fn by_rules(
        &self,
        origin: &CgroupPath,
        names: &Names,
        cpus: &CpuSet,
    ) -> Result<(AdoptableVm<'_>, Vec<Process>), Missing> {
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
        match vm(&vm_rules(&rules), &found, cpus) {
            Ok(vm) => Ok((vm, found)),
            Err(why) => {
                // A rule of every container says nothing of those without a VMM.
                let is_shown = !matches!(why, NotAdopted::NoVmm { .. }) || rules.iter().any(|rule| is_particular(rule));
                Err(missing(is_shown, named(&why)))
            }
        }
    }

    /// The ready-made rule for a VM: the first whose names fit too.
    fn suggested(&self, names: &Names, vm: &AdoptableVm<'_>) -> String {
        let fits = rules_for(names, &self.ready_made).unwrap_or_default();
        let same = fits
            .into_iter()
            .find(|rule| rule.vmm == vm.rule.vmm && rule.threads == vm.rule.threads);
        same.map(|rule| rule.name.clone()).unwrap_or_default()
    }

    fn processes(&self, origin: &CgroupPath, rules: &[&AdoptRule]) -> Result<Vec<Process>, Refusal> {
        let vmm = |name: &str, program: &str| is_vmm(rules, name, program);
        let vcpu = |name: &str| is_vcpu(rules, name);
        let found = vmm_processes::candidates(&self.cgroups, &self.procs, origin, &vmm, &vcpu);
        found.map_err(|cause| ("Unreadable".to_owned(), cause.to_string()))
    }

    fn is_instance(&self, origin: &CgroupPath, cgroup: &ContainerCgroup) -> bool {
        let cgroups = &self.cgroups;
        let scope = CgroupPath::slice().child(&cgroup.pod.scope());
        // In place the record is on the pod's cgroup.
        let place = RecordPlace::on_pod(&containers::container_scope(origin));
        let schema = cgroups.attribute(place.cgroup(), &place.name(SCHEMA_ATTRIBUTE));
        cgroups.exists(&scope) || schema.is_ok_and(|found| found.is_some())
    }
}

/// The rules by which a VM in the container is adopted.
fn vm_rules<'r>(rules: &[&'r AdoptRule]) -> Vec<&'r AdoptRule> {
    match RulesFor::of(rules) {
        RulesFor::Vm(rules) => rules,
        RulesFor::Container(_) => Vec::new(),
    }
}

/// Whether the rule names more than a program.
fn is_particular(rule: &AdoptRule) -> bool {
    let lists = [&rule.namespaces, &rule.pods, &rule.containers];
    lists
        .iter()
        .any(|list| list.iter().all(|pattern| pattern.as_str() != "*"))
}

impl VmLine {
    pub(super) fn refused(&mut self, (name, text): Refusal) {
        self.reason = Some(name);
        self.why = text;
    }

    fn has(&mut self, vm: &AdoptableVm<'_>, found: &[Process], cpus: usize) {
        let process = found.iter().find(|process| process.task == vm.process);
        let program = process.and_then(|process| process.command.first());
        let program = program.map(|path| path.rsplit('/').next().unwrap_or_default().to_owned());
        self.rule = vm.rule.name.clone();
        self.vmm = program;
        self.vmm_pid = Some(vm.process.id);
        self.vcpus = Some(vm.threads.len());
        // Where the whole container has its CPUs, those beyond the vCPUs are of use.
        self.spare_cpus = match vm.rule.isolation {
            Isolation::Vcpus => cpus.saturating_sub(vm.threads.len()),
            Isolation::Container => 0,
        };
        vm.rule.isolation.name().clone_into(&mut self.isolation);
        self.tree = vm.rule.tree.name().to_owned();
    }

    /// It would be adopted, with this record.
    fn adopted(&mut self, vm: &AdoptableVm<'_>, record: &Record) {
        let pins = record
            .vcpus
            .iter()
            .map(|thread| Some((thread.role.into(), thread.cpu?)));
        let pins: Option<BTreeMap<u32, u32>> = pins.collect();
        let kept = vm.pinned_cpus.as_ref().filter(|kept| pins.as_ref() == Some(kept));
        let ours = record.placement.name();
        self.would_be_adopted = true;
        self.why = match (kept, &vm.note) {
            (Some(_), _) => "its vCPUs keep the CPUs that they are pinned to".to_owned(),
            (None, Some(note)) => format!("placed by {ours}: {note}"),
            (None, None) => format!("placed by {ours}"),
        };
        if vm.rule.isolation == Isolation::Container {
            self.why = match kept {
                Some(_) => "all tasks of the container share its CPUs; its vCPUs keep the CPUs that they are pinned to"
                    .to_owned(),
                None => "all tasks of the container share its CPUs".to_owned(),
            };
        }
        if vm.rule.partition == AdoptPartition::Member {
            self.why += "; contained, without a partition";
        }
        if record.allocation.is_some() {
            self.why += "; steliad chooses its CPUs when it is adopted";
        }
        self.placement = kept.map_or(ours, |_| AdoptPlacement::Keep.name()).to_owned();
        self.kept_cpus = kept.map(|pins| pins.values().copied().collect()).unwrap_or_default();
    }
}
