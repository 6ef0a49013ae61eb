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
//! # Ok::<(), anyhow::Error>(())
//! ```

use std::path::Path;

use anyhow::{Context, bail, ensure};
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

impl Scenario {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// The booted node, with kubelet's first file in `directory/kubelet`.
    pub fn node(&self, directory: &Path) -> anyhow::Result<(Model, Checkpoint)> {
        let kernel = match self.host.kernel.as_deref() {
            None | Some("6.12") => Kernel::V6_12,
            Some("6.1") => Kernel::V6_1,
            Some(other) => bail!("kernel = {other:?}: 6.12 and 6.1 are known"),
        };
        let Host {
            sockets,
            cores,
            threads,
            ..
        } = self.host;
        for (what, number, most) in [
            ("sockets", sockets, 128),
            ("cores", cores, MAX_CPUS),
            ("threads", threads, 128),
        ] {
            ensure!((1..=most).contains(&number), "{what} = {number}: 1 to {most}");
        }
        let cpus = sockets.checked_mul(cores).and_then(|cpus| cpus.checked_mul(threads));
        ensure!(
            cpus.is_some_and(|cpus| cpus <= MAX_CPUS),
            "sockets * cores * threads = {sockets} * {cores} * {threads}: at most {MAX_CPUS} CPUs"
        );
        let topology = topology(sockets, cores, threads);
        let model = Model::node(&topology, directory, kernel).context("make the node")?;
        let checkpoint = Checkpoint::create(&directory.join("kubelet"), &topology.online());
        Ok((model, checkpoint.context("write kubelet's file")?))
    }
}

impl PodSpec {
    /// kubelet admits the pod, containerd starts it.
    pub fn start(&self, model: &Model, checkpoint: &mut Checkpoint) -> anyhow::Result<Pod> {
        let Self { uid, name, cpus, .. } = self;
        let uid = PodUid::parse(uid).with_context(|| format!("uid = {uid:?}"))?;
        let own: CpuSet = cpus.parse().with_context(|| format!("cpus = {cpus:?}"))?;
        ensure!(
            !own.is_empty() && own.is_subset(checkpoint.default_cpus()),
            "cpus = {cpus:?}: not all of them are in the shared pool"
        );
        checkpoint.admit(&uid, "vm", &own).context("write kubelet's file")?;
        let named = |name: &String| {
            let parts = name.split_once('/');
            let pod = parts.and_then(|(namespace, name)| PodName::new(namespace, name));
            pod.with_context(|| format!("name = {name:?}: not the namespace and the name of a pod"))
        };
        let name = name.as_ref().map(named).transpose()?;
        let pod = model.add_pod(&uid, &own, &Limits::default()).context("start the pod")?;
        if let Some(name) = name {
            model
                .name_pod(&pod, &name)
                .context("write the runtime's configuration")?;
        }
        Ok(pod)
    }
}

impl Meddle {
    pub fn act(&self, model: &Model) -> anyhow::Result<()> {
        let Self { cgroup, file, value } = self;
        let at = CgroupPath::parse(cgroup).with_context(|| format!("cgroup = {cgroup:?}: not a cgroup path"))?;
        let known = [
            File::Procs,
            File::Threads,
            File::Cpus,
            File::CpusExclusive,
            File::Partition,
            File::CpuMax,
        ];
        let known = known.into_iter().find(|known| known.name() == file);
        let known = known.with_context(|| format!("file = {file:?}: not a file that a scenario can write"))?;
        model
            .meddle(&at, known, value)
            .with_context(|| format!("write {cgroup}/{file}"))
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
            let error = format!("{:#}", node(&text).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
