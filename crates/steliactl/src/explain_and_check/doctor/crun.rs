//! Whether a runtime of the node's containers is a crun that limits those which kubelet does not limit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stelia_node::cgroup::KernelCgroups;
use stelia_node::containers::all_containers;
use stelia_node::oci::{Kind, runtime_of};

use super::Facts;
use super::checks::{Finding, ok, unknown, warning};

/// The first version in which a quota of -1, which kubelet sends for a container with exclusive CPUs, is no limit (containers/crun issue 1794).
const FIXED: (u32, u32) = (1, 22);

/// The runtimes of the containers that run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Runtimes {
    /// Each crun, with what it prints as its version, or why that is not known.
    pub(super) cruns: BTreeMap<PathBuf, Result<String, String>>,
    /// How many containers there are of which the runtime is not known, and how many in all.
    pub(super) unknown: (usize, usize),
}

impl Runtimes {
    /// Reads which runtime each container has; `root` is `/`. `version` has a program print its version.
    pub(super) fn read(root: &Path, version: impl Fn(&Path) -> Result<String, String>) -> Self {
        let all = all_containers(&KernelCgroups::new(root.join("sys/fs/cgroup"))).unwrap_or_default();
        let known = all
            .iter()
            .filter_map(|(_, container)| runtime_of(root, &container.container_id));
        let known: Vec<_> = known.collect();
        let unknown = (all.len() - known.len(), all.len());
        let cruns = known.into_iter().filter(|runtime| runtime.kind == Kind::Crun);
        let mut of_programs = BTreeMap::new();
        for crun in cruns {
            of_programs
                .entry(crun.binary)
                .or_insert_with_key(|program| version(program));
        }
        Self {
            cruns: of_programs,
            unknown,
        }
    }
}

/// The first two numbers of `crun version 1.21`, and the version as it is printed.
fn version(printed: &str) -> Option<((u32, u32), &str)> {
    let text = printed.lines().next()?.strip_prefix("crun version ")?.trim();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some(((numbers.next()?.ok()?, numbers.next()?.ok()?), text))
}

pub(super) fn check(facts: &Facts) -> Finding {
    let (mut old, mut unclear, mut fixed) = (Vec::new(), Vec::new(), Vec::new());
    for (program, printed) in &facts.runtimes.cruns {
        let program = program.display();
        match printed.as_deref().map(version) {
            Ok(Some((numbers, text))) if numbers < FIXED => old.push(format!("crun {text} ({program})")),
            Ok(Some((_, text))) => fixed.push(format!("crun {text} ({program})")),
            Ok(None) => unclear.push(format!("{program} does not print a version of crun")),
            Err(error) => unclear.push(format!("{program}: {error}")),
        }
    }
    if !old.is_empty() {
        return warning(
            format!(
                "{}: a container with exclusive CPUs has 1 % of a CPU where kubelet sets no quota",
                old.join(", ")
            ),
            "install crun 1.22 or newer, or use runc, and start the containers anew: cpu.max stays as it was written (containers/crun issue 1794)",
        );
    }
    let (unread, all) = facts.runtimes.unknown;
    if unread > 0 {
        unclear.push(format!("not known of {unread} of {all} containers; run it as root"));
    }
    match (unclear.is_empty(), fixed.is_empty()) {
        (false, _) => unknown(unclear.join(", ")),
        (true, false) => ok(fixed.join(", ")),
        (true, true) => ok("no container has it as its runtime"),
    }
}
