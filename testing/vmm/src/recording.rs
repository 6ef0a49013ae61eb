//! What the processes and threads of a real VMM were at each step of its life: recorded by `tests/node/real/vmms`, played by the program.

use serde::{Deserialize, Serialize};

pub const CLOUD_HYPERVISOR: &str = include_str!("../recordings/cloud-hypervisor-53.0.json");
pub const FIRECRACKER: &str = include_str!("../recordings/firecracker-1.16.1.json");
/// crosvm's version never changes, so the name of its file has the commit.
pub const CROSVM: &str = include_str!("../recordings/crosvm-0.1.0-f1e797a68dad.json");

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
    /// One of the files above.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

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
