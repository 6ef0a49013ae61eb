//! Drivers of Dynamic Resource Allocation (DRA) that give CPUs to containers, as they are seen on a node.
//!
//! Such a driver decides beside kubelet's CPU manager. It registers with kubelet by a socket that has its name
//! (`plugins_registry/dra.cpu-reg.sock`), and hands the CPUs of claims to the runtime by CDI specifications: one with a device for each
//! claim (`/run/cdi/dra.cpu.json` of kind `dra.k8s.io/cpu`), or one for each claim. There is no list of all such drivers: one is known
//! by the word "cpu" in its name or in its kind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stelia_kubelet::config::values;

/// Where kubelet's plugins register, below its root directory.
const REGISTRY: &str = "plugins_registry";
/// How the name of a DRA driver's socket there ends.
const SOCKET: &str = "-reg.sock";
/// Where CDI specifications are (`/var/run` is a link).
const CDI: [&str; 2] = ["run/cdi", "etc/cdi"];
/// A longer specification is not read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The drivers by name, each with the file that shows it; `root` is `/`, `kubelet` kubelet's root directory.
#[must_use]
pub fn cpu_drivers(root: &Path, kubelet: &Path) -> BTreeMap<String, PathBuf> {
    let specifications = CDI.iter().flat_map(|folder| files(&root.join(folder)));
    let of_claims = specifications.filter(|path| gives_cpus(path)).filter_map(|path| {
        let name = of_specification(path.file_stem()?.to_str()?).to_owned();
        Some((name, path))
    });
    let registered = files(&kubelet.join(REGISTRY)).filter_map(|path| {
        let name = driver(path.file_name()?.to_str()?)?.to_owned();
        Some((name, path))
    });
    of_claims.chain(registered).collect()
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// The driver of a socket, if it is about CPUs: `dra.cpu-reg.sock`, and `dra.cpu-<UID of its pod>-reg.sock` during an update.
fn driver(socket: &str) -> Option<&str> {
    let name = without_uid(socket.strip_suffix(SOCKET)?);
    is_cpu(name).then_some(name)
}

/// The driver of a specification's file: `dra.cpu`, and `dra.k8s.io-cpu_claim-UID` with a file for each claim.
fn of_specification(name: &str) -> &str {
    let name = without_uid(name);
    name.split_once('_').map_or(name, |(name, _)| name)
}

fn without_uid(name: &str) -> &str {
    let parts = name.split_at_checked(name.len().saturating_sub(37));
    let parts = parts.filter(|(_, uid)| uid.starts_with('-') && uid.matches('-').count() == 5);
    parts.map_or(name, |(name, _)| name)
}

/// Whether the word is one of a name's: `dra.cpu`, `native.cpu`, `cpu.example.com`, not `gpu.example.com`.
fn is_cpu(name: &str) -> bool {
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| word.eq_ignore_ascii_case("cpu") || word.eq_ignore_ascii_case("cpus"))
}

/// Whether a CDI specification has devices that are CPUs: its kind is `vendor/class`. Without devices nobody was given any.
fn gives_cpus(path: &Path) -> bool {
    let is_short = fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_BYTES);
    if !is_short {
        return false;
    }
    let Ok(text) = fs::read_to_string(path) else {
        return false;
    };
    // YAML or JSON, which the runtimes read alike.
    let Ok(specification) = values(&text, "CDI") else {
        return false;
    };
    let kind = specification.get("kind").and_then(Value::as_str);
    let class = kind.and_then(|kind| kind.rsplit('/').next());
    let devices = specification.get("devices").and_then(Value::as_array);
    devices.is_some_and(|devices| !devices.is_empty()) && class.is_some_and(is_cpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_root::Root;

    #[test]
    fn a_driver_of_cpus_is_known_by_its_socket_or_by_the_claims_it_prepared() {
        let root = Root::new();
        let kubelet = root.join("kubelet");
        let found = || cpu_drivers(&root, &kubelet).into_keys().collect::<Vec<_>>();
        assert!(found().is_empty());
        for other in [
            "gpu.nvidia.com-reg.sock",
            "ebs.csi.aws.com-reg.sock",
            "dra.cpu",
            "cpufreq.example.com-reg.sock",
        ] {
            root.file(&format!("kubelet/plugins_registry/{other}"), "");
        }
        let specification =
            |kind: &str, devices: &str| format!(r#"{{"cdiVersion":"0.8.0","kind":"{kind}","devices":[{devices}]}}"#);
        let device = r#"{"name":"claim-1","containerEdits":{"env":["DRA_CPUSET_1=2-3"]}}"#;
        root.file("run/cdi/dra.cpu.json", specification("dra.k8s.io/cpu", ""))
            .file("run/cdi/gpu.json", specification("nvidia.com/gpu", device))
            .file("etc/cdi/broken.json", "{");
        assert!(found().is_empty(), "{:?}", found());
        root.file("kubelet/plugins_registry/dra.cpu-reg.sock", "");
        assert_eq!(found(), ["dra.cpu"]);
        fs::remove_file(kubelet.join("plugins_registry/dra.cpu-reg.sock")).unwrap();
        assert!(found().is_empty());
        // Its pod ended, and containers still have what it gave them.
        root.file("run/cdi/other.json", specification("dra.k8s.io/cpu", device));
        assert_eq!(found(), ["other"]);
        fs::remove_file(root.join("run/cdi/other.json")).unwrap();
        for claim in [
            "3ceda12c-3ee9-40fa-9f42-61428fe654a6",
            "7ba2ddbb-4c4f-4c06-8d5e-0b3f2b0a9d11",
        ] {
            for name in ["dra.k8s.io-cpu_claim", "cpu.example.com"] {
                let path = format!("run/cdi/{name}-{claim}.json");
                root.file(&path, specification("dra.k8s.io/cpu", device));
            }
        }
        assert_eq!(found(), ["cpu.example.com", "dra.k8s.io-cpu"]);
    }

    /// The default of CDI's library.
    #[test]
    fn a_specification_in_yaml_is_read_too() {
        let root = Root::new();
        let claim = "run/cdi/dra.k8s.io-cpu_claim-3ceda12c-3ee9-40fa-9f42-61428fe654a6.yaml";
        let text =
            |devices: &str| format!("---\ncdiVersion: 0.8.0\nkind: dra.k8s.io/cpu # of CPUs\ndevices:{devices}\n");
        let claimed = "\n- name: claim-1\n  containerEdits:\n    env: [DRA_CPUSET_1=2-3]";
        for (devices, expected) in [(claimed, &["dra.k8s.io-cpu"][..]), (" []", &[]), ("", &[])] {
            root.file(claim, text(devices));
            let found: Vec<String> = cpu_drivers(&root, &root.join("kubelet")).into_keys().collect();
            assert_eq!(found, expected, "{devices}");
        }
    }

    #[test]
    fn the_name_is_without_the_uid_that_an_update_adds() {
        let uid = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";
        assert_eq!(driver(&format!("dra.cpu-{uid}-reg.sock")), Some("dra.cpu"));
        assert_eq!(driver("native.cpu-reg.sock"), Some("native.cpu"));
        assert_eq!(driver("cpu.example.com-reg.sock"), Some("cpu.example.com"));
        assert_eq!(driver(&format!("gpu.nvidia.com-{uid}-reg.sock")), None);
        assert_eq!(driver("-reg.sock"), None);
    }
}
