//! What the kernel has of each VM, read here and now: CPU lists, partitions, threads, and who else may run on the VM's CPUs. The daemon is
//! not asked.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use stelia_api::{ReasonCode, State};
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{
    CgroupPath, Cgroups, File, KernelCgroups, OUTSIDE, numbers, optional, populated, read_optional_cpus,
};
use stelia_kernel::proc::{KernelProcs, ProcError, Procs, stat};
use stelia_kernel::workqueue;
use stelia_koordinator::allocator::Qos;
use stelia_kubelet::ContainerCgroup;
use stelia_model::record::Tree;
use stelia_model::{Instance, PinnedThread};
use stelia_settings::{AdoptPlacement, Isolation};

use crate::check::first_few;
use crate::shared::daemon::{Description, NODE};
use crate::shared::kernel::Roots;

/// Cgroups that are looked at for others on the VMs' CPUs.
const MAX_CGROUPS: usize = 10_000;

/// Something that the kernel has otherwise than it should be: the code of the daemon's reason for the same or a word of this program, and
/// the fact.
pub(super) type Difference = (&'static str, String);

/// The differences of a VM, or why it could not be checked.
pub(super) type Checked = Result<Vec<Difference>, String>;

/// Checks each VM that the daemon describes, by pod UID; with `-` if not all cgroups could be looked at.
pub(super) fn check(description: &Description, roots: &Roots) -> BTreeMap<String, Checked> {
    let mut kernel = Kernel {
        cgroups: KernelCgroups::new(&roots.cgroup),
        procs: KernelProcs::new(&roots.proc),
        online: description.node.topology.online(),
        others: Vec::new(),
        workers: workqueue::in_force(&roots.sys).map_err(|cause| cause.to_string()),
    };
    let instances = &description.node.instances;
    let alone = instances
        .values()
        .filter(|one| one.state == State::Isolated || is_kept(one));
    let looked = kernel.look_for_others(&alone.flat_map(|one| one.exclusive.iter()).collect());
    let unread = looked.err().map(|cause| {
        let text = format!("who else may run on the CPUs of VMs: {cause}");
        (NODE.to_owned(), Err(text))
    });
    let each = instances.iter();
    each.map(|(uid, one)| (uid.to_string(), kernel.vm(one).map_err(|cause| cause.to_string())))
        .chain(unread)
        .collect()
}

/// Whether it is pinned to CPUs that steliad keeps the host's units off. Those of class LSR are shared anyhow.
fn is_kept(instance: &Instance) -> bool {
    let is_lsr = instance.allocation.as_ref().is_some_and(|one| one.qos == Qos::Lsr);
    instance.state == State::Pinned && !is_lsr
}

/// Whether a partition of this type has its CPUs alone. The kernel appends why one is invalid.
fn is_valid(partition: &str) -> bool {
    matches!(partition, "isolated" | "root")
}

struct Kernel {
    cgroups: KernelCgroups,
    procs: KernelProcs,
    online: CpuSet,
    /// The outermost cgroups with tasks that may run on CPUs which VMs are to have alone, each with these CPUs.
    others: Vec<(CgroupPath, CpuSet)>,
    /// Where the kernel's unbound workers may run.
    workers: Result<Option<CpuSet>, String>,
}

impl Kernel {
    fn vm(&self, instance: &Instance) -> Result<Vec<Difference>, Box<dyn Error>> {
        let tree = Tree::at(instance.scope.clone(), instance.isolation);
        let (is_container, vcpu) = (!tree.has_float(), tree.vcpu());
        let mut found = Vec::new();
        if instance.state != State::Releasing && !is_container {
            let named = ("float cgroup", tree.float());
            found.extend(self.difference(named, File::Cpus, "float-cpuset", &instance.float)?);
        }
        if !matches!(instance.state, State::Isolated | State::Pinned) {
            return Ok(found);
        }
        let name = if is_container {
            "container cgroup"
        } else {
            "vCPU cgroup"
        };
        let usable = instance.exclusive.intersection(&self.online);
        if !is_container {
            // A container's own list is kubelet's.
            found.extend(self.difference((name, vcpu), File::Cpus, "cpuset", &instance.exclusive)?);
        }
        found.extend(self.difference((name, vcpu), File::CpusEffective, "cpuset", &usable)?);
        let partition = self.text(vcpu, File::Partition)?;
        if instance.state == State::Isolated && !(is_valid(&partition) && partition == instance.partition) {
            let recorded = Some(instance.partition.as_str()).filter(|kind| is_valid(kind));
            let has = if partition.is_empty() { "missing" } else { &partition };
            let expected = recorded.unwrap_or("isolated");
            let text = format!("{name}: cpuset.cpus.partition is {has}, not {expected}");
            found.push((ReasonCode::PartitionChanged.name(), text));
        }
        let mut inside: BTreeSet<i32> = numbers(&self.text(vcpu, File::Threads)?).into_iter().collect();
        for pinned in &instance.vcpus {
            let is_there = inside.remove(&pinned.thread.task.id);
            match self.thread(instance, &tree, pinned, is_there) {
                Ok(difference) => found.extend(difference),
                // One that its cgroup lists is hidden (hidepid of /proc). One in another cgroup may be too, unless the first process is seen.
                Err(error) if error.is_gone() && !is_there && self.procs.identify(1).is_ok() => {
                    found.push(ended(pinned));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !is_container && !inside.is_empty() {
            let strangers: Vec<i32> = inside.into_iter().collect();
            let text = format!("threads in the {name} that are no vCPUs: {}", first_few(&strangers));
            found.push(("other-threads", text));
        }
        // Without a partition everybody may run there.
        let changed = ReasonCode::PartitionChanged.name();
        let is_alone = instance.state == State::Isolated && found.iter().all(|(code, _)| *code != changed);
        let units = OUTSIDE.map(|unit| CgroupPath::root().child(unit));
        let is_kept_off = |cgroup: &CgroupPath| is_kept(instance) && units.iter().any(|unit| cgroup.is_within(unit));
        let others = self.others.iter().filter(|(cgroup, cpus)| {
            let is_other = !cpus.is_disjoint(&instance.exclusive) && !cgroup.is_within(vcpu);
            is_other && (is_alone || is_kept_off(cgroup))
        });
        let others: Vec<&CgroupPath> = others.map(|(cgroup, _)| cgroup).collect();
        if !others.is_empty() {
            found.push(("others", format!("tasks of {} may run on its CPUs", first_few(&others))));
        }
        if is_alone
            && let Some(mask) = self.workers.as_ref().map_err(String::as_str)?
            && !mask.is_disjoint(&instance.exclusive)
        {
            let file = "/sys/devices/virtual/workqueue/cpumask";
            let text = format!("unbound kernel workers may run on its CPUs ({file})");
            found.push(("workers", text));
        }
        Ok(found)
    }

    /// A vCPU's thread; `is_there`: its cgroup lists it.
    fn thread(
        &self,
        instance: &Instance,
        tree: &Tree,
        pinned: &PinnedThread,
        is_there: bool,
    ) -> Result<Option<Difference>, ProcError> {
        let (task, role) = (pinned.thread.task, pinned.thread.role);
        // Another one may have its number.
        if self.procs.identify(task.id)?.start != task.start {
            return Ok(Some(ended(pinned)));
        }
        let is_container = instance.isolation == Isolation::Container;
        let cgroup = self.procs.cgroup(task.id)?;
        // A container may have cgroups of its own.
        let is_inside = is_there || (is_container && cgroup.is_within(tree.inner()));
        if !is_inside {
            let text = format!("{role} (thread {}) is in {cgroup}", task.id);
            return Ok(Some((ReasonCode::ThreadMoved.name(), text)));
        }
        let has = self.procs.affinity(task.id)?;
        let usable = instance.exclusive.intersection(&self.online);
        // Others may pin it to another one of the VM's CPUs.
        let is_free = instance.placement == AdoptPlacement::Keep || (is_container && pinned.thread.cpu.is_none());
        let (is_right, expected) = match pinned.thread.cpu.filter(|cpu| self.online.contains(*cpu)) {
            _ if is_free => (has.is_subset(&usable), usable),
            Some(cpu) => (has.len() == 1 && has.contains(cpu), std::iter::once(cpu).collect()),
            None => (has == usable, usable),
        };
        let text = || format!("{role} (thread {}) may run on CPUs {has}, not {expected}", task.id);
        Ok((!is_right).then(|| ("affinity", text())))
    }

    /// Whether a file of CPUs says something else.
    fn difference(
        &self,
        (name, cgroup): (&str, &CgroupPath),
        file: File,
        code: &'static str,
        expected: &CpuSet,
    ) -> Result<Option<Difference>, Box<dyn Error>> {
        let has = read_optional_cpus(&self.cgroups, cgroup, file)?;
        let shown = |cpus: &CpuSet| match cpus.to_string() {
            none if none.is_empty() => "empty".to_owned(),
            some => some,
        };
        let says = has.as_ref().map_or("missing".to_owned(), shown);
        let text = || format!("{name}: {} is {says}, not {}", file.name(), shown(expected));
        Ok((has.as_ref() != Some(expected)).then(|| (code, text())))
    }

    /// Empty where there is no such file.
    fn text(&self, cgroup: &CgroupPath, file: File) -> Result<String, Box<dyn Error>> {
        Ok(optional(self.cgroups.read(cgroup, file))?.unwrap_or_default())
    }

    /// Finds the cgroups with tasks that may run on these CPUs. Below a cgroup that has none of them no other has any: a partition takes its CPUs
    /// from all that are above it.
    fn look_for_others(&mut self, taken: &CpuSet) -> Result<(), Box<dyn Error>> {
        let (mut left, mut budget) = (vec![(CgroupPath::root(), taken.clone())], MAX_CGROUPS);
        while let Some((cgroup, above)) = left.pop() {
            // Where it does not have the controller, its tasks have what the one above it has.
            let own = read_optional_cpus(&self.cgroups, &cgroup, File::CpusEffective)?;
            let cpus = own.unwrap_or(above).intersection(taken);
            if cpus.is_empty() || is_valid(&self.text(&cgroup, File::Partition)?) {
                continue;
            }
            if self.has_tasks(&cgroup)? {
                self.others.push((cgroup.clone(), cpus.clone()));
                if cgroup != CgroupPath::root() {
                    continue;
                }
            }
            let names = optional(self.cgroups.some_children(&cgroup, budget + 1))?.unwrap_or_default();
            let rest = budget.checked_sub(names.len());
            budget = rest.ok_or_else(|| format!("there are more than {MAX_CGROUPS} cgroups"))?;
            left.extend(names.iter().map(|name| (cgroup.child(name), cpus.clone())));
        }
        Ok(())
    }

    /// Whether it has tasks of its own. A container has those of the cgroups below it too, of which it can make any number. The kernel's own
    /// threads, which are in the root, do not count.
    fn has_tasks(&self, cgroup: &CgroupPath) -> Result<bool, Box<dyn Error>> {
        let threads = numbers(&self.text(cgroup, File::Threads)?);
        if *cgroup != CgroupPath::root() {
            let is_container = ContainerCgroup::parse(cgroup.as_str()).is_some();
            return Ok(!threads.is_empty() || (is_container && populated(&self.cgroups, cgroup)?));
        }
        for thread in threads {
            match self.procs.read_thread_stat(thread) {
                Ok(text) if stat::parse(&text).is_some_and(|stat| !stat.is_kernel_thread()) => return Ok(true),
                Err(error) if !error.is_gone() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(false)
    }
}

fn ended(pinned: &PinnedThread) -> Difference {
    let (id, role) = (pinned.thread.task.id, pinned.thread.role);
    let text = format!("the thread {id} of {role} has ended");
    (ReasonCode::ThreadEnded.name(), text)
}
