//! `doctor`: whether this node is ready for VMs. It needs no daemon. What a running one says is wrong on the node is shown, and not
//! checked again.
//!
//! What is observed is read once, by [`Observed::read`]. A check is a pure function of it.

mod host;
mod kubelet;
mod services;
mod state_file;
mod vms;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kubelet_planner::Machine;
use serde::Serialize;
use stelia_cpus::Topology;
use stelia_kernel::dra;
use stelia_koordinator::allocator::AllocatorPolicies;
use stelia_koordinator::report::numa;
use stelia_kubelet::CpuManagerState;
use stelia_kubelet::config::{self, ConfigError, KubeletConfig};
use stelia_kubelet::devices::plugin_folder;
use stelia_kubelet::home::{self, Search};
use stelia_kubelet::process_place::ProcessPlace;
use stelia_node_plan::machine;
use stelia_settings::Settings;

use crate::check::{first_few, printed};
use crate::shared::daemon::{Description, Failure};
use crate::shared::files::{KubeletFiles, below, without_root};
use crate::shared::output::{Block, FAIL, Meaning, Render, TextStyle, paragraph};
pub(super) use host::version_of_systemd;
pub(crate) use state_file::read_state_file;

/// In the order in which diagnoses are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Fail,
    /// VMs run, but less well than they could.
    Warn,
    /// For the administrator to weigh: what would make it better, or what cannot be determined.
    Note,
    Pass,
    /// Not run, because another check did not pass.
    Skip,
}

impl Outcome {
    const fn label(self) -> (&'static str, Meaning) {
        match self {
            Self::Fail => FAIL,
            Self::Warn => ("WARN", Meaning::Attention),
            Self::Note => ("NOTE", Meaning::Plain),
            Self::Pass => ("PASS", Meaning::Good),
            Self::Skip => ("SKIP", Meaning::Absent),
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Diagnosis {
    /// The check's name, which documents quote; of what the daemon says, the reason's code.
    check: &'static str,
    outcome: Outcome,
    fact: String,
    /// What follows from it; empty where the fact says it.
    effect: &'static str,
    /// A command or an instruction; empty where there is nothing to do.
    fix: String,
    /// Of a skipped check the one that did not pass.
    needs: Option<&'static str>,
}

/// `Err`: the check is skipped, because the one of this name did not pass.
type CheckResult = Result<Diagnosis, &'static str>;
type Check = fn(&Observed) -> CheckResult;

fn diagnosis(outcome: Outcome, fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> Diagnosis {
    Diagnosis {
        check: "",
        outcome,
        fact: fact.into(),
        effect,
        fix: fix.into(),
        needs: None,
    }
}

fn pass(fact: impl Into<String>) -> CheckResult {
    Ok(diagnosis(Outcome::Pass, fact, "", ""))
}

fn note(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> CheckResult {
    Ok(diagnosis(Outcome::Note, fact, effect, fix))
}

fn warn(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> CheckResult {
    Ok(diagnosis(Outcome::Warn, fact, effect, fix))
}

fn fail(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> CheckResult {
    Ok(diagnosis(Outcome::Fail, fact, effect, fix))
}

/// An effect that several checks name.
const NO_VMS: &str = "no new VMs; running VMs keep their CPUs";

const KUBELET: &str = "kubelet";
const STATE: &str = "kubelet-state";
const DAEMON: &str = "daemon";

const CONTROLLER_NAMES: &str = "sys/fs/cgroup/cgroup.controllers";
const RELEASE: &str = "proc/sys/kernel/osrelease";
const COMMAND_LINE: &str = "proc/cmdline";
const NUMA_BALANCING: &str = "proc/sys/kernel/numa_balancing";
const KVM: &str = "dev/kvm";
const SOCKET: &str = "run/stelia/runner/socket";
const TRACING: &str = "sys/kernel/tracing/events";

/// The most basic first.
const CHECKS: [(&str, Check); 22] = [
    ("cgroup", host::cgroup),
    ("kernel", host::kernel),
    ("systemd", host::systemd),
    ("kvm", host::kvm),
    (KUBELET, kubelet::configuration),
    ("kubelet-home", kubelet::home),
    ("kubelet-cgroups", kubelet::cgroups),
    ("kubelet-policy", kubelet::policy),
    ("dra-driver", kubelet::dra),
    (STATE, kubelet::state),
    ("kubelet-start", kubelet::start),
    ("crun", vms::quotas),
    ("cpus", host::cpus),
    ("isolcpus", host::isolcpus),
    ("numa-balancing", vms::numa_balancing),
    (DAEMON, services::daemon),
    ("runner-socket", services::socket),
    ("device-plugin", services::device_plugin),
    ("irq-steering", services::steering),
    ("ledger", services::ledger),
    ("vm-memory", vms::memory),
    ("locality", vms::locality),
];

/// What the checks look at. An error says why it could not be read.
#[derive(Debug)]
struct Observed {
    /// What is in these files, below `/`, where it can be read; of those that are there and not read nothing.
    texts: BTreeMap<&'static str, String>,
    /// Whether cgroups have `cpuset.cpus.exclusive`; `None`: none has the cpuset controller.
    has_exclusive: Option<bool>,
    /// Its version.
    systemd: Option<u32>,
    topology: Result<Topology, String>,
    /// The running kubelet's configuration.
    kubelet: Result<KubeletConfig, ConfigError>,
    /// kubeadm's file, where no kubelet runs: one that cannot start runs only for moments.
    stopped: Option<Result<KubeletConfig, ConfigError>>,
    /// kubelet's root directory as the daemon reads it by its setting, or why it cannot be determined or is not the one that kubelet
    /// writes to.
    home: Result<PathBuf, String>,
    /// Who chooses exclusive CPUs, and how: from steliad's configuration, or its defaults where it cannot be read.
    allocator: AllocatorPolicies,
    files: KubeletFiles,
    /// The machine as kubelet sees it; `None` where it cannot be read.
    machine: Option<Machine>,
    /// The first process of a pod in a cgroup where steliad does not look for pods.
    misplaced: Option<(i32, ProcessPlace)>,
    /// Of DRA drivers that assign CPUs the names, with their files.
    cpu_drivers: Vec<String>,
    /// Whether kubelet has a directory of device plugins.
    has_plugins: Result<bool, String>,
    /// The containers whose CPU quota is below their exclusive CPUs.
    low_quotas: Result<Vec<String>, String>,
    /// What systemd says of steliad's services, by unit: its state, and its status as `systemctl status` shows it. Empty: no answer.
    units: BTreeMap<&'static str, [String; 2]>,
    described: Result<Description, Failure>,
}

impl Observed {
    /// Reads what is in files; `root` is `/`.
    fn read(root: &Path, described: Result<Description, Failure>) -> Self {
        let (proc, sys) = (root.join("proc"), root.join("sys"));
        let kubelet = config::read(&proc, root, Search::SocketsThenNames);
        let stopped = matches!(kubelet, Err(ConfigError::NotRunning));
        let settings = stelia_settings::load(root).map_or_else(|_| Settings::default(), |loaded| loaded.settings);
        let home = home::by_setting(&settings.kubelet_root, root, None).map_err(|error| error.to_string());
        let real = |path: &Path| {
            let path = below(root, path);
            fs::canonicalize(&path).unwrap_or(path)
        };
        let running = kubelet.as_ref().ok().map(|kubelet| &kubelet.root_dir);
        let folder = running.or(home.as_ref().ok()).cloned();
        let folder = below(root, &folder.unwrap_or_else(|| KubeletConfig::default().root_dir));
        let as_kubelet = Topology::read_as_kubelet(&sys).ok().zip(numa::read(&sys).ok());
        let texts = [CONTROLLER_NAMES, RELEASE, COMMAND_LINE, NUMA_BALANCING].into_iter();
        let texts = texts.filter_map(|file| Some((file, fs::read_to_string(root.join(file)).ok()?)));
        let there = [KVM, SOCKET, TRACING].map(|file| (file, String::new())).into_iter();
        let there = there.filter(|(file, _)| root.join(file).exists());
        let files = KubeletFiles::read(root, &folder);
        let state = files.cpus.as_ref().ok().and_then(Option::as_ref);
        let drivers = dra::cpu_drivers(root, &folder).into_iter();
        let plugins = plugin_folder(root, &folder);
        Self {
            topology: Topology::read(&sys).map_err(|error| error.to_string()),
            stopped: stopped.then(|| config::kubeadm(root)).flatten().map(|(_, read)| read),
            home: match (home.map(|path| without_root(root, &path)), &kubelet) {
                (Ok(read), Ok(kubelet)) if real(&read) != real(&kubelet.root_dir) => {
                    let written = kubelet.root_dir.display();
                    Err(format!("{} is read, but kubelet writes to {written}", read.display()))
                }
                (home, _) => home,
            },
            allocator: settings.policies.allocator,
            texts: texts.chain(there).collect(),
            has_exclusive: host::has_exclusive(root),
            systemd: version_of_systemd(root),
            misplaced: kubelet::misplaced(&proc),
            cpu_drivers: drivers
                .map(|(name, file)| format!("{name} ({})", without_root(root, &file).display()))
                .collect(),
            has_plugins: plugins
                .try_exists()
                .map_err(|cause| format!("read {}: {cause}", plugins.display())),
            low_quotas: vms::low_quotas(root, state),
            files,
            machine: as_kubelet.map(|(topology, numa)| machine(&topology, &topology.caches(&sys), &numa)),
            kubelet,
            units: BTreeMap::new(),
            described,
        }
    }

    /// What systemd says of this host's services; nothing where it does not answer.
    async fn read_units(&mut self) {
        for unit in ["steliad", "steliad-device-plugin"] {
            let show = |property| format!("systemctl show --value --property={property} {unit}");
            let Ok(state) = printed(&show("ActiveState")).await else {
                return;
            };
            let status = printed(&show("StatusText")).await.unwrap_or_default();
            self.units
                .insert(unit, [state, status].map(|text| text.trim().to_owned()));
        }
    }

    /// Empty where it cannot be read.
    fn text(&self, file: &str) -> &str {
        self.texts.get(file).map_or("", |text| text.trim())
    }

    fn has(&self, file: &str) -> bool {
        self.texts.contains_key(file)
    }

    fn kubelet(&self) -> Result<&KubeletConfig, &'static str> {
        self.kubelet.as_ref().map_err(|_| KUBELET)
    }

    fn description(&self) -> Result<&Description, &'static str> {
        self.described.as_ref().map_err(|_| DAEMON)
    }

    /// `cpu_manager_state`, where it is there and can be used.
    fn state(&self) -> Option<&CpuManagerState> {
        self.files.cpus.as_ref().ok().and_then(Option::as_ref)
    }
}

fn examine(seen: &Observed) -> Vec<Diagnosis> {
    let checked = CHECKS.iter().map(|(check, run)| match run(seen) {
        Ok(diagnosis) => Diagnosis { check, ..diagnosis },
        Err(needs) => Diagnosis {
            check,
            needs: Some(needs),
            ..diagnosis(Outcome::Skip, format!("needs {needs}"), "", "")
        },
    });
    checked.chain(services::problems(seen)).collect()
}

/// All diagnoses; as JSON a list of them.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Examined(Vec<Diagnosis>);

/// Runs all checks on the node below `root`. `described`: what the daemon says of it.
pub(crate) async fn gather(root: &Path, described: Result<Description, Failure>) -> Examined {
    let mut seen = Observed::read(root, described);
    // systemctl speaks of this host only.
    if root == Path::new("/") {
        seen.read_units().await;
    }
    Examined(examine(&seen))
}

impl Examined {
    /// The worst first; in the wide form with the checks that passed or were skipped.
    pub(super) fn blocks(&self, style: TextStyle) -> Vec<Block> {
        let shown = self.0.iter().filter(|one| style.wide || one.outcome < Outcome::Pass);
        let mut shown: Vec<&Diagnosis> = shown.collect();
        shown.sort_by_key(|one| one.outcome);
        let block = |one: &Diagnosis| Block::new(one.outcome.label(), one.check, &one.fact, one.effect, &one.fix);
        shown.into_iter().map(block).collect()
    }
}

impl Render for Examined {
    fn text(&self, style: TextStyle) -> String {
        let mut text: String = self.blocks(style).iter().map(|block| block.text(style)).collect();
        if style.legend {
            let of = |outcome| self.0.iter().filter(|one| one.outcome == outcome).count();
            let [failed, passed, skipped] = [Outcome::Fail, Outcome::Pass, Outcome::Skip].map(of);
            let hint = if style.wide { "" } else { " (-v)" };
            // That it is not ready is why the command fails.
            let ready = if failed == 0 {
                " This node is ready for VMs."
            } else {
                ""
            };
            let counts = format!("{failed} failed, {passed} passed{hint}, {skipped} skipped.{ready}");
            text += &paragraph(&counts, style);
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let failed = self.0.iter().filter(|one| one.outcome == Outcome::Fail);
        let failed: Vec<&str> = failed.map(|one| one.check).collect();
        (!failed.is_empty()).then(|| format!("this node is not ready for VMs: {}", failed.join(", ")))
    }
}
