//! The checkpoint file of kubelet's static CPU manager.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::json;
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_kubelet::checksum::{fnv1a, of_data};
use stelia_kubelet::cpu_manager_state::{CPU_MANAGER_STATE, v2_to_v4};

/// The checkpoint in a directory, written as kubelet does: a temporary file is renamed over the old one, and one change
/// takes two writes.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    root: PathBuf,
    default: CpuSet,
    entries: BTreeMap<String, BTreeMap<String, String>>,
    pods: BTreeMap<String, String>,
}

impl Checkpoint {
    /// kubelet's first file: every CPU is shared.
    pub fn create(root: &Path, cpus: &CpuSet) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let checkpoint = Self {
            root: root.to_owned(),
            default: cpus.clone(),
            entries: BTreeMap::new(),
            pods: BTreeMap::new(),
        };
        checkpoint.write()?;
        Ok(checkpoint)
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.root.join(CPU_MANAGER_STATE)
    }

    /// The shared CPUs.
    pub fn default_cpus(&self) -> &CpuSet {
        &self.default
    }

    /// The CPUs that are assigned to a container.
    pub fn entry(&self, pod: &PodUid, container: &str) -> Option<CpuSet> {
        self.entries.get(pod.as_str())?.get(container)?.parse().ok()
    }

    /// Assigns CPUs to a container: the default set shrinks, then the entry appears.
    pub fn admit(&mut self, pod: &PodUid, container: &str, cpus: &CpuSet) -> io::Result<()> {
        self.default = self.default.difference(cpus);
        self.write()?;
        let containers = self.entries.entry(pod.to_string()).or_default();
        containers.insert(container.to_owned(), cpus.to_string());
        self.write()
    }

    /// Assigns CPUs to a pod with pod-level resources and divides them among its containers: the default set shrinks,
    /// then the pod's entry appears, then each container's. The file has schema V4 while such a pod exists.
    pub fn admit_pod(&mut self, pod: &PodUid, cpus: &CpuSet, containers: &[(&str, &CpuSet)]) -> io::Result<()> {
        self.default = self.default.difference(cpus);
        self.write()?;
        self.pods.insert(pod.to_string(), cpus.to_string());
        self.write()?;
        for (container, cpus) in containers {
            let entries = self.entries.entry(pod.to_string()).or_default();
            entries.insert((*container).to_owned(), cpus.to_string());
            self.write()?;
        }
        Ok(())
    }

    /// Releases a pod's CPUs: its entries disappear, then the default set grows.
    pub fn release(&mut self, pod: &PodUid) -> io::Result<()> {
        let containers = self.entries.remove(pod.as_str()).unwrap_or_default();
        let own = self.pods.remove(pod.as_str());
        self.write()?;
        for cpus in containers.values().chain(&own) {
            let cpus: CpuSet = cpus
                .parse()
                .map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))?;
            self.default = self.default.union(&cpus);
        }
        self.write()
    }

    /// Writes the current state, with its checksum.
    pub fn write(&self) -> io::Result<()> {
        let default = self.default.to_string();
        let checksum = fnv1a(&v2_to_v4::hashed("static", &default, &self.entries));
        let mut file = json!({
            "policyName": "static",
            "defaultCpuSet": default,
            "entries": self.entries,
            "checksum": checksum,
        });
        if !self.pods.is_empty() {
            let pods = self
                .pods
                .iter()
                .map(|(pod, cpus)| (pod.clone(), json!({ "cpuSet": cpus })));
            let data = json!({
                "policyName": "static",
                "defaultCpuSet": default,
                "entries": self.entries,
                "podEntries": pods.collect::<serde_json::Map<_, _>>(),
            });
            let data = data.to_string();
            file["dataChecksum"] = of_data(&data).into();
            file["data"] = data.into();
        }
        self.write_bytes(file.to_string().as_bytes())
    }

    /// Replaces the file by any bytes.
    pub fn write_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.root.join(format!(".{CPU_MANAGER_STATE}"));
        fs::write(&temporary, bytes)?;
        fs::rename(temporary, self.path())
    }
}
