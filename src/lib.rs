//! steliad gives a VM inside a Kubernetes pod its CPUs to itself.
//!
//! Dependencies point downward only; [`plan`], [`alloc`] and [`planner`] do no I/O.
//!
//! | module | what it is |
//! |---|---|
//! | [`dbus`] | the D-Bus contract: interfaces, client proxies, errors, the two doors |
//! | [`runner`] | `stelia-runner`: PID 1 of the VM's container |
//! | [`ctl`] | `steliactl`: the operator's view |
//! | [`engine`] | the loop: events, bounded turns, calls |
//! | [`plan`] | pure decisions: admission, placement, steps |
//! | [`alloc`] | our own CPU allocator: policies, pools, QoS classes |
//! | [`node_topology`] | what schedulers are told of the node: NodeResourceTopology |
//! | [`planner`] | what would kubelet do: its managers' answers |
//! | [`authz`] | who may do what: a pure table |
//! | [`config`] | fragments → merge → settings |
//! | [`systemd`] | the few manager calls we need |
//! | [`kubelet`] | checkpoints, checksum, pod cgroup names |
//! | [`cgroup`] | cgroup v2 files and extended attributes |
//! | [`mod@proc`] | processes: pidfds, PID namespaces, affinity |
//! | [`model`] | a node in memory that keeps the kernel's rules, for tests |
//! | [`topology`], [`cpuset`] | CPUs |
//! | [`quantity`] | Kubernetes' quantities |

pub mod authz;
pub mod ctl;
pub mod daemon;
pub mod dbus;
pub mod engine;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod journal;
#[cfg(test)]
mod man;
pub mod model;
pub mod plan;
pub mod runner;
pub mod simulate;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// Every line below `folder` that speaks of the lint, as `file: line`.
    fn lines(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                lines(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let speaks = text.lines().filter(|line| line.contains(concat!("unsafe", "_code")));
                found.extend(speaks.map(|line| format!("{}: {line}", path.display())));
            }
        }
    }

    #[test]
    fn unsafe_is_denied_but_in_two_functions() {
        let manifest = fs::read_to_string("Cargo.toml").unwrap();
        assert!(manifest.contains(concat!("\nunsafe", "_code = \"deny\"\n")));
        let mut found = Vec::new();
        for folder in ["src", "tests"] {
            lines(Path::new(folder), &mut found);
        }
        found.sort();
        let excused = ["affinity", "daemon"].map(|file| format!("src/{file}.rs: #[allow({}_code)]", "unsafe"));
        assert_eq!(found, excused);
    }
}
