//! What the processes and threads of a real VMM were at each step of its life: recorded by `tests/node/real/vmms`, played by the program.

use serde::{Deserialize, Serialize};

/// A VMM that was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Vmm {
    CloudHypervisor,
    Firecracker,
    /// With its sandbox: each of its devices is a process in a PID namespace of its own
    Crosvm,
}

impl Vmm {
    pub const ALL: [Self; 3] = [Self::CloudHypervisor, Self::Firecracker, Self::Crosvm];

    /// As the ready-made rules of adoption name it, and the option `--like`.
    pub fn name(self) -> &'static str {
        match self {
            Self::CloudHypervisor => "cloud-hypervisor",
            Self::Firecracker => "firecracker",
            Self::Crosvm => "crosvm",
        }
    }

    /// What the names of its vCPU threads have before their numbers. So have the ready-made rules (`crates/settings/src/adopt/ready_made.rs`) and
    /// `crates/runner/src/vmm/thread_names.rs`.
    pub fn vcpu_prefix(self) -> &'static str {
        match self {
            Self::CloudHypervisor => "vcpu",
            Self::Firecracker => "fc_vcpu ",
            Self::Crosvm => "crosvm_vcpu",
        }
    }

    /// Whether a thread of this name is a vCPU's.
    pub fn is_vcpu(self, thread: &str) -> bool {
        let number = thread.strip_prefix(self.vcpu_prefix());
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    }

    /// The recording's file. crosvm's version never changes, so the name of its file has the commit.
    fn file(self) -> &'static str {
        match self {
            Self::CloudHypervisor => include_str!("../recordings/cloud-hypervisor-53.0.json"),
            Self::Firecracker => include_str!("../recordings/firecracker-1.16.1.json"),
            Self::Crosvm => include_str!("../recordings/crosvm-0.1.0-f1e797a68dad.json"),
        }
    }

    pub fn recording(self) -> serde_json::Result<Recording> {
        serde_json::from_str(self.file())
    }
}

/// A VMM with two vCPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    pub program: String,
    pub version: String,
    /// Its command line without the program.
    pub options: String,
    /// The thread that creates the VM, as KVM's uevent names it.
    pub vm_created_by: String,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub moment: Moment,
    /// The VMM's own first.
    pub processes: Vec<Process>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// The vCPUs run, but the guest's drivers do not use the devices yet.
    Booting,
    Booted,
    Rebooted,
    /// The guest is shut down, and the VMM stays.
    ShutDown,
    BootedAgain,
    /// By another process of the VMM, from a snapshot.
    Restored,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// The file's name in the first word of its command line.
    pub argv0: String,
    pub comm: String,
    /// Whether it has PID and user namespaces of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_namespaces: bool,
    /// The names of its other threads, sorted.
    #[serde(with = "one_line")]
    pub threads: Vec<String>,
}

impl Recording {
    pub fn at(&self, moment: Moment) -> Option<&[Process]> {
        let step = self.steps.iter().find(|step| step.moment == moment);
        step.map(|step| step.processes.as_slice())
    }
}

/// No name has a comma.
mod one_line {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&names.join(", "))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let names = text.split(", ").filter(|name| !name.is_empty());
        Ok(names.map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_written_as_it_was_read() {
        let text = Vmm::Crosvm.file();
        let recording = Vmm::Crosvm.recording().unwrap();
        assert_eq!(serde_json::to_string_pretty(&recording).unwrap(), text.trim_end());
    }
}
