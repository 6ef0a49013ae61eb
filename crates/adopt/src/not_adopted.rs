//! Why a container's VM is not adopted.

use std::fmt;

use stelia_text::excerpt;

use crate::Accelerator;

/// Each reason has a name, and a text that says what to change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotAdopted {
    /// No rule matches this container.
    NoRule,
    /// The runtime's configuration does not name it.
    Unnamed,
    ContainerRefuses {
        rule: String,
    },
    /// No process is the rule's VMM: it may not have started yet.
    NoVmm {
        rule: String,
    },
    /// Only one of a process's two names is a VMM's.
    NamesDiffer {
        pid: i32,
        name: String,
        program: String,
    },
    /// No thread is named as a vCPU: they may not have started yet.
    NoVcpus {
        pid: i32,
        threads: String,
    },
    /// The guest's vCPUs are not KVM's, as the names of its threads say.
    OtherAccelerator {
        pid: i32,
        accelerator: Accelerator,
        found: usize,
        threads: String,
    },
    /// Fewer than the guest has: they may not have started yet.
    TooFewVcpus {
        pid: i32,
        found: usize,
        cpus: u32,
    },
    /// A number in between has no thread.
    Gap {
        pid: i32,
        index: u32,
        found: usize,
    },
    /// Two threads have the same number.
    Doubled {
        pid: i32,
        index: u32,
        tids: [i32; 2],
    },
    TooManyVcpus {
        pid: i32,
        found: usize,
        most: u32,
    },
    /// Its guest does not run yet, and who keeps it from that may pin the vCPUs first.
    NotStarted {
        pid: i32,
    },
    SeveralVmms {
        pids: Vec<i32>,
    },
}

impl NotAdopted {
    /// Its name, for JSON and for journals.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoRule => "NoRule",
            Self::Unnamed => "Unnamed",
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

impl fmt::Display for NotAdopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRule => f.write_str("no rule is of this container"),
            Self::Unnamed => f.write_str("the runtime's configuration does not say which pod's container this is"),
            Self::ContainerRefuses { rule } => {
                write!(
                    f,
                    "the container has STELIA_ADOPT=no in its environment, which rule {rule} heeds"
                )
            }
            Self::NoVmm { rule } => write!(f, "no process of it is a VMM of rule {rule}"),
            Self::NamesDiffer { pid, name, program } => write!(
                f,
                "process {pid} is named \"{}\" and was started as \"{}\": only one of both is a VMM",
                excerpt::name(name),
                excerpt::name(program)
            ),
            Self::NoVcpus { pid, threads } => write!(
                f,
                "process {pid} has no thread named \"{threads}\": it has not started its vCPUs, or does not name them (QEMU: \
                 -name …,debug-threads=on)"
            ),
            Self::OtherAccelerator {
                pid,
                accelerator,
                found,
                threads,
            } => write!(
                f,
                "{} process {pid} has {found} thread(s) named as {}, and none named \"{threads}\"{}",
                accelerator.in_words(),
                accelerator.threads(),
                accelerator.what_to_do()
            ),
            Self::TooFewVcpus { pid, found, cpus } => {
                write!(
                    f,
                    "process {pid} has {found} threads named as vCPUs, and -smp has {cpus} CPUs"
                )
            }
            Self::Gap { pid, index, found } => {
                write!(
                    f,
                    "process {pid} has {found} threads named as vCPUs, and none of vCPU {index}: a number may be missing only where -smp \
                     with maxcpus says that vCPUs can be plugged"
                )
            }
            Self::Doubled {
                pid,
                index,
                tids: [one, other],
            } => {
                write!(
                    f,
                    "threads {one} and {other} of process {pid} are both named as vCPU {index}"
                )
            }
            Self::TooManyVcpus { pid, found, most } => {
                write!(f, "process {pid} has {found} threads named as vCPUs, more than {most}")
            }
            Self::NotStarted { pid } => write!(
                f,
                "process {pid} was started with -S and its guest has not run: who is to let it run pins its vCPUs before (libvirt) or makes \
                 their cgroups (KubeVirt)"
            ),
            Self::SeveralVmms { pids } => {
                let pids: Vec<String> = pids.iter().take(4).map(i32::to_string).collect();
                write!(f, "processes {} are all VMMs with vCPUs", pids.join(", "))
            }
        }
    }
}
