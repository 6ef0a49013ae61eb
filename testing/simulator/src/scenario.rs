//! A scenario for `stelia-simulate`: a node, its pods, and what other programs change, as TOML.
//!
//! ```toml
//! [host]
//! sockets = 2          # each one NUMA node
//! cores = 4            # a socket
//! threads = 2          # a core
//! kernel = "6.12"      # or "6.1", which has no partitions
//!
//! [[pod]]
//! uid = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5"
//! name = "default/vm"  # what the runtime calls the pod; without it nothing
//! cpus = "2-3"         # kubelet's entry
//! vcpus = 2            # 0: registered, its VM not started yet
//!
//! [[meddle]]           # writes by other programs, in order
//! cgroup = "/stelia.slice/stelia-instance-b9e4f71c-64a5-4f8d-8574-41363cbaf8e5.scope/instance/float"
//! file = "cpuset.cpus"
//! value = "0-7"
//! ```
//!
//! ```rust
//! use stelia_simulator::scenario::Scenario;
//!
//! let scenario = Scenario::parse(
//!     r#"
//!     [host]
//!     sockets = 1
//!     cores = 4
//!     threads = 2
//!
//!     [[pod]]
//!     uid = "3ceda12c-3ee9-40fa-9f42-61428fe654a6"
//!     cpus = "2-3,6-7"
//!     vcpus = 4
//!     "#,
//! )?;
//! assert_eq!(scenario.pods.len(), 1);
//! # Ok::<(), stelia_simulator::scenario::ScenarioError>(())
//! ```

use std::path::Path;

use serde::Deserialize;
use stelia_cpus::{CpuSet, MAX_CPUS};
use stelia_kernel::cgroup::{CgroupPath, File, Limits};
use stelia_kubelet::{PodName, PodUid};
use stelia_testnode::kubelet::Checkpoint;
use stelia_testnode::{Kernel, Model, Pod, topology};

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub host: Host,
    /// The pods, in the order in which they start.
    #[serde(default, rename = "pod")]
    pub pods: Vec<PodSpec>,
    #[serde(default, rename = "meddle")]
    pub meddles: Vec<Meddle>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// How many sockets; each is a NUMA node.
    pub sockets: u32,
    pub cores: u32,
    pub threads: u32,
    #[serde(default)]
    pub kernel: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodSpec {
    pub uid: String,
    /// The namespace and the name in the runtime's configuration of the container.
    #[serde(default)]
    pub name: Option<String>,
    pub cpus: String,
    /// vCPUs of its VM; with 0 it has only registered.
    pub vcpus: u32,
}

/// A write by another program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meddle {
    pub cgroup: String,
    pub file: String,
    pub value: String,
}

/// Why a scenario cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file is not TOML, or has a key that does not exist.
    #[error("{0}")]
    Syntax(Box<toml::de::Error>),
    /// A value is out of range or does not parse.
    #[error("{what} = {value:?}: {cause}")]
    Value {
        what: &'static str,
        value: String,
        cause: String,
    },
    /// The model's directory cannot be written, or the model's kernel refused an operation.
    #[error("{what}: {cause}")]
    Play { what: String, cause: std::io::Error },
}

fn value<E: ToString>(what: &'static str, value: &str) -> impl FnOnce(E) -> ScenarioError {
    let value = value.to_owned();
    move |cause| ScenarioError::Value {
        what,
        value,
        cause: cause.to_string(),
    }
}

fn play(what: &str) -> impl FnOnce(std::io::Error) -> ScenarioError + '_ {
    move |cause| ScenarioError::Play {
        what: what.to_owned(),
        cause,
    }
}

impl Scenario {
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        toml::from_str(text).map_err(|cause| ScenarioError::Syntax(Box::new(cause)))
    }

    /// The booted node, with kubelet's first file in `directory/kubelet`.
    pub fn node(&self, directory: &Path) -> Result<(Model, Checkpoint), ScenarioError> {
        let kernel = match self.host.kernel.as_deref() {
            None | Some("6.12") => Kernel::V6_12,
            Some("6.1") => Kernel::V6_1,
            Some(other) => return Err(value("kernel", other)("6.12 and 6.1 are known")),
        };
        for (what, number, most) in [
            ("sockets", self.host.sockets, 128),
            ("cores", self.host.cores, MAX_CPUS),
            ("threads", self.host.threads, 128),
        ] {
            if !(1..=most).contains(&number) {
                return Err(value(what, &number.to_string())(format!("1 to {most}")));
            }
        }
        let cpus = [self.host.cores, self.host.threads]
            .iter()
            .try_fold(self.host.sockets, |all, more| all.checked_mul(*more));
        if cpus.is_none_or(|cpus| cpus > MAX_CPUS) {
            let product = format!("{} * {} * {}", self.host.sockets, self.host.cores, self.host.threads);
            return Err(value("sockets * cores * threads", &product)(format!(
                "at most {MAX_CPUS} CPUs"
            )));
        }
        let topology = topology(self.host.sockets, self.host.cores, self.host.threads);
        let model = Model::node(&topology, directory, kernel).map_err(play("make the node"))?;
        let checkpoint =
            Checkpoint::create(&directory.join("kubelet"), &topology.online()).map_err(play("write kubelet's file"))?;
        Ok((model, checkpoint))
    }
}

impl PodSpec {
    /// kubelet admits the pod, containerd starts it.
    pub fn start(&self, model: &Model, checkpoint: &mut Checkpoint) -> Result<Pod, ScenarioError> {
        let uid = PodUid::parse(&self.uid).map_err(value("uid", &self.uid))?;
        let cpus: CpuSet = self.cpus.parse().map_err(value("cpus", &self.cpus))?;
        if cpus.is_empty() || !cpus.is_subset(checkpoint.default_cpus()) {
            return Err(value("cpus", &self.cpus)("not all of them are in the shared pool"));
        }
        checkpoint
            .admit(&uid, "vm", &cpus)
            .map_err(play("write kubelet's file"))?;
        let name = self.name.as_deref().map(|name| {
            let parts = name
                .split_once('/')
                .and_then(|(namespace, name)| PodName::new(namespace, name));
            parts
                .ok_or("not the namespace and the name of a pod")
                .map_err(value("name", name))
        });
        let name = name.transpose()?;
        let pod = model
            .add_pod(&uid, &cpus, &Limits::default())
            .map_err(play("start the pod"))?;
        if let Some(name) = name {
            model
                .name_pod(&pod, &name)
                .map_err(play("write the runtime's configuration"))?;
        }
        Ok(pod)
    }
}

impl Meddle {
    pub fn act(&self, model: &Model) -> Result<(), ScenarioError> {
        let cgroup = CgroupPath::parse(&self.cgroup)
            .ok_or("not a cgroup path")
            .map_err(value("cgroup", &self.cgroup))?;
        let known = [
            File::Procs,
            File::Threads,
            File::Cpus,
            File::CpusExclusive,
            File::Partition,
            File::CpuMax,
        ];
        let file = known.into_iter().find(|file| file.name() == self.file);
        let file = file
            .ok_or("not a file that a scenario can write")
            .map_err(value("file", &self.file))?;
        model
            .meddle(&cgroup, file, &self.value)
            .map_err(play(&format!("write {}/{}", self.cgroup, self.file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_scenario_is_named() {
        let node = |text: &str| {
            let directory = tempfile::tempdir().unwrap();
            Scenario::parse(text).and_then(|scenario| {
                let (model, mut checkpoint) = scenario.node(directory.path())?;
                scenario
                    .pods
                    .iter()
                    .try_for_each(|pod| pod.start(&model, &mut checkpoint).map(drop))?;
                scenario.meddles.iter().try_for_each(|meddle| meddle.act(&model))
            })
        };
        let host = "[host]\nsockets = 1\ncores = 2\nthreads = 2\n";
        node(host).unwrap();
        let pod = "[[pod]]\nuid = \"b9e4f71c-64a5-4f8d-8574-41363cbaf8e5\"\nvcpus = 1\n";
        for (text, says) in [
            ("[host]\nsockets = 1".to_owned(), "cores"),
            (host.replace("= 2", "= 0"), "cores"),
            (host.replace("cores = 2", "cores = 8192"), "at most"),
            (format!("{host}kernel = \"7\""), "6.12"),
            (format!("{host}{pod}cpus = \"8\""), "shared pool"),
            (format!("{host}{pod}cpus = \"2\"\nname = \"vm\""), "namespace"),
            (
                format!("{host}[[meddle]]\ncgroup = \"/\"\nfile = \"x\"\nvalue = \"\""),
                "not a file",
            ),
            (
                format!("{host}[[meddle]]\ncgroup = \"/none\"\nfile = \"cpuset.cpus\"\nvalue = \"\""),
                "/none",
            ),
        ] {
            let error = node(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
