//! `adopt --dry-run`: the VMs on this node that did not register, whole containers that rules adopt, and what the rules of `[[adopt]]` make of each. Needs no
//! daemon, and changes nothing.

mod admission;
mod container;
mod gather;
mod users;

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::shared::daemon::Pod;
use crate::shared::output::{Column, Meaning, Render, TextStyle, column, counted, table};
pub(crate) use gather::gather;

/// A container with a VM, one that a rule says has one, or one that a rule adopts whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct VmLine {
    #[serde(flatten)]
    pod: Pod,
    /// By the runtime's configuration; its id where that does not name it.
    container: String,
    /// The rule that would adopt it, or whose VMM was found; empty without one.
    rule: String,
    /// The ready-made rule that finds the VM, where none is set; else empty.
    ready_made: String,
    /// The VMM's program and process id on the host; `None`: not found.
    vmm: Option<String>,
    vmm_pid: Option<i32>,
    /// How many vCPU threads it has.
    vcpus: Option<usize>,
    /// The container's exclusive CPUs by kubelet's file.
    exclusive_cpus: String,
    /// `keep` where vCPUs stay on the CPUs they are pinned to, else the order that places them; empty where it is not adopted.
    placement: String,
    /// The CPUs that are kept, by vCPU; empty where none are.
    kept_cpus: Vec<u32>,
    tree: String,
    /// `vcpus`, or `container`: then the container's own cgroup becomes the partition. Empty where no rule matches.
    isolation: String,
    would_be_adopted: bool,
    /// The name of the reason why not: one of this program's, or of the error that registration would answer.
    reason: Option<String>,
    /// The same as a sentence; for a VM that would be adopted, what the operator should know.
    why: String,
    /// Exclusive CPUs that are beyond one for each vCPU.
    spare_cpus: usize,
    /// KubeVirt's `housekeeping` cgroup is there: `isolateEmulatorThread` is on.
    housekeeping: bool,
}

const COLUMNS: [Column<VmLine>; 12] = [
    column("POD", |one: &VmLine| one.pod.to_string()).yields(2),
    column("POD UID", |one: &VmLine| one.pod.pod_uid.clone()).wide(),
    column("CONTAINER", |one: &VmLine| one.container.clone()).yields(3),
    column("VMM", |one: &VmLine| one.vmm.clone().unwrap_or_default()).yields(3),
    column("VCPUS", |one: &VmLine| shown(one.vcpus)).right(),
    column("CPUS", |one: &VmLine| one.exclusive_cpus.clone()).yields(1),
    column("SPARE", |one: &VmLine| one.spare_cpus.to_string())
        .right()
        .wide(),
    column("RULE", |one: &VmLine| one.rule.clone()).wide(),
    column("ISOLATION", |one: &VmLine| one.isolation.clone()).wide(),
    column("PLACEMENT", |one: &VmLine| one.placement.clone()).wide(),
    column("WOULD BE ADOPTED", |one: &VmLine| {
        match (one.would_be_adopted, one.reason.as_deref()) {
            (true, _) => "yes".to_owned(),
            (false, Some("Untried")) => "not known".to_owned(),
            (false, _) => "no".to_owned(),
        }
    })
    .means(|one| {
        if one.would_be_adopted {
            Meaning::Good
        } else {
            Meaning::Attention
        }
    }),
    column("WHY", |one: &VmLine| one.why.clone()).yields(4),
];

fn shown(number: Option<usize>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

/// The rules in force, and what they make of this node's containers.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Preview {
    /// Names of the rules, in their order.
    rules: Vec<String>,
    vms: Vec<VmLine>,
    /// Exclusive CPUs of the VMs beyond one for each vCPU, such as `isolateEmulatorThread` asks for: adoption needs none.
    spare_cpus: usize,
}

impl Preview {
    fn new(rules: Vec<String>, mut vms: Vec<VmLine>) -> Self {
        vms.sort_by_key(|one| (!one.would_be_adopted, one.pod.to_string(), one.container.clone()));
        let spare_cpus = vms.iter().map(|one| one.spare_cpus).sum();
        Self { rules, vms, spare_cpus }
    }

    /// The ready-made rules that would find VMs for which none is set.
    fn missing_rules(&self) -> Vec<&str> {
        let mut found: Vec<&str> = self.vms.iter().map(|one| one.ready_made.as_str()).collect();
        found.sort_unstable();
        found.dedup();
        found.retain(|name| !name.is_empty());
        found
    }
}

impl Render for Preview {
    fn names(&self) -> Vec<String> {
        let adopted = self.vms.iter().filter(|one| one.would_be_adopted);
        adopted.map(|one| one.pod.to_string()).collect()
    }

    fn text(&self, style: TextStyle) -> String {
        // A VM that cannot be adopted has a line, too.
        let mut text = if self.vms.is_empty() {
            "No VMs to adopt.\n".to_owned()
        } else {
            table(&COLUMNS, &self.vms, style)
        };
        if self.rules.is_empty() {
            text += "\nNo rule is set: nothing is adopted (/usr/share/doc/steliad/adopt.md).\n";
        }
        let missing = self.missing_rules();
        if !missing.is_empty() {
            let rules: Vec<String> = missing.iter().map(|name| format!("use = \"{name}\"")).collect();
            text += &format!(
                "\nReady-made rules would find VMs that have none: {}.\n",
                rules.join(", ")
            );
        }
        if self.spare_cpus > 0 {
            let cpus = counted(self.spare_cpus as u64, "exclusive CPU");
            text += &format!(
                "\n{cpus} beyond the vCPUs: where these keep their pins, float's (/usr/share/doc/steliad/adopt.md).\n"
            );
        }
        text
    }
}
