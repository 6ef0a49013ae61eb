//! Why a container's VM is not adopted.

use stelia_cpus::text::excerpt;

use crate::adopt::Accelerator;

/// Each reason has a name, and a text that says what to change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NotAdopted {
    /// No rule matches this container.
    #[error("no rule is of this container")]
    NoRule,
    /// The runtime's configuration does not name it.
    #[error(
        "the runtime's configuration does not say which pod's container this is: set runtime-state if the runtime keeps its state \
         elsewhere"
    )]
    Unnamed,
    /// The runtime's configuration names the pod, and no container of it.
    #[error(
        "this is the pod's sandbox (Kata Containers' VM), and rules adopt containers: run the VM in a container of a pod with the \
         runtime runc or crun"
    )]
    Sandbox,
    #[error("the container has STELIA_ADOPT=no in its environment, which rule {rule} heeds")]
    ContainerRefuses { rule: String },
    /// No process is the rule's VMM: it may not have started yet.
    #[error("no process of it is a VMM of rule {rule}")]
    NoVmm { rule: String },
    /// Only one of a process's two names is a VMM's.
    #[error(
        "process {pid} is named \"{}\" and was started as \"{}\": only one of both is a VMM. If both are, name both in the rule: \
         vmm = [\"{}\", \"{}\"]",
        excerpt::name(name),
        excerpt::name(program),
        excerpt::name(name),
        excerpt::name(program.rsplit('/').next().unwrap_or_default())
    )]
    NamesDiffer { pid: i32, name: String, program: String },
    /// No thread is named as a vCPU: they may not have started yet.
    #[error(
        "process {pid} has no thread named \"{threads}\": it has not started its vCPUs, or does not name them (QEMU: \
         -name …,debug-threads=on)"
    )]
    NoVcpus { pid: i32, threads: String },
    /// The guest's vCPUs are not KVM's, as the names of its threads say.
    #[error(
        "{} process {pid} has {found} thread(s) named as {}, and none named \"{threads}\"{}",
        accelerator.in_words(),
        accelerator.threads(),
        accelerator.what_to_do()
    )]
    OtherAccelerator {
        pid: i32,
        accelerator: Accelerator,
        found: usize,
        threads: String,
    },
    /// Fewer than the guest has: they may not have started yet.
    #[error("process {pid} has {found} threads named as vCPUs, and -smp has {cpus} CPUs")]
    TooFewVcpus { pid: i32, found: usize, cpus: u32 },
    /// A number in between has no thread.
    #[error(
        "process {pid} has {found} threads named as vCPUs, and none of vCPU {index}: a number may be missing only where -smp \
         with maxcpus says that vCPUs can be plugged"
    )]
    Gap { pid: i32, index: u32, found: usize },
    /// Two threads have the same number.
    #[error("threads {} and {} of process {pid} are both named as vCPU {index}", tids[0], tids[1])]
    Doubled { pid: i32, index: u32, tids: [i32; 2] },
    #[error("process {pid} has {found} threads named as vCPUs, more than {most}")]
    TooManyVcpus { pid: i32, found: usize, most: u32 },
    /// Its guest does not run yet, and who keeps it from that may pin the vCPUs first.
    #[error(
        "process {pid} was started with -S and its guest has not run: who is to let it run pins its vCPUs before (libvirt) or makes \
         their cgroups (KubeVirt)"
    )]
    NotStarted { pid: i32 },
    #[error("processes {} are all VMMs with vCPUs", first_pids(pids))]
    SeveralVmms { pids: Vec<i32> },
}

impl NotAdopted {
    /// Its name, for JSON and for journals.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoRule => "NoRule",
            Self::Unnamed => "Unnamed",
            Self::Sandbox => "Sandbox",
            Self::ContainerRefuses { .. } => "ContainerRefuses",
            Self::NoVmm { .. } => "NoVmm",
            Self::NamesDiffer { .. } => "NamesDiffer",
            Self::NoVcpus { .. } => "NoVcpus",
            Self::OtherAccelerator { .. } => "OtherAccelerator",
            Self::TooFewVcpus { .. } => "TooFewVcpus",
            Self::Gap { .. } => "Gap",
            Self::Doubled { .. } => "Doubled",
            Self::TooManyVcpus { .. } => "TooManyVcpus",
            Self::NotStarted { .. } => "NotStarted",
            Self::SeveralVmms { .. } => "SeveralVmms",
        }
    }

    /// Whether it is so while a VM starts: looking again soon may find it.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::NoVmm { .. }
                | Self::NamesDiffer { .. }
                | Self::NoVcpus { .. }
                | Self::TooFewVcpus { .. }
                | Self::Gap { .. }
                | Self::NotStarted { .. }
        )
    }
}

fn first_pids(pids: &[i32]) -> String {
    let pids: Vec<String> = pids.iter().take(4).map(i32::to_string).collect();
    pids.join(", ")
}
