//! Checks of steliad's own services: what the daemon says of interrupts, the ledger and memory, and whether kubelet has the node's VMs as
//! devices (`stelia-device-plugin`).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use stelia_api::VM_RESOURCE;
use stelia_api::publication::{DIRECTORY, FILE, LOCK, Publication};
use stelia_api::quiet::Irqbalance;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::locality::size;
use stelia_kubelet::devices::plugin_folder;
use tokio::time::timeout;
use zbus::proxy::CacheProperties;
use zbus::{Connection, proxy};

use super::{Facts, Finding, Outcome, QUIET, fail, note, pass, skip, warn};
use crate::check::noise::NOT_REPORTED;
use crate::shared::daemon::Description;
use crate::shared::output::counted;

/// It needs no daemon to be ready: the socket, kubelet's next change and every call start it.
pub(super) fn runs(facts: &Facts) -> Finding {
    match (&facts.described, facts.daemon) {
        (Some(_), _) => pass("running"),
        (None, true) => warn("running, but does not answer: nothing is repaired").fix("journalctl -u steliad"),
        (None, false) => warn("not running: nothing is repaired")
            .fix("systemctl start steliad; if it ends again, journalctl -u steliad"),
    }
}

pub(super) fn socket(facts: &Facts) -> Finding {
    if facts.socket {
        return pass("/run/stelia/runner/socket");
    }
    fail("/run/stelia/runner/socket is missing").fix("systemctl enable --now steliad-runner.socket")
}

/// Whether `steliad-quiet` answers. Without VMs nothing is asked of it; the noise on the CPUs of VMs is measured where there are any.
pub(super) fn quiet(facts: &Facts, told: &Description) -> Finding {
    let quiet = &told.node.quiet;
    match &quiet.problem {
        Some(problem) => warn(problem).fix("systemctl status steliad-quiet; journalctl -u steliad-quiet"),
        None if quiet.steering.is_empty() => note(NOT_REPORTED),
        None if quiet.answered_us > 0 => pass("answers"),
        None if facts.noise.is_some() && quiet.steering != "off" => note(NOT_REPORTED),
        None => pass("not asked yet: no VM has had CPUs"),
    }
}

/// Whether interrupts are steered, and with what success.
pub(super) fn steering(facts: &Facts, told: &Description) -> Finding {
    let report = &told.node.quiet.report;
    match told.node.quiet.steering.as_str() {
        "off" => note("off: devices may interrupt the VMs' CPUs")
            .fix("set irq-steering = \"shared\" in /etc/stelia/steliad.toml, systemctl reload steliad"),
        _ if quiet(facts, told).outcome != Outcome::Pass => skip(QUIET),
        steering if report.remaining.is_empty() => pass(steering),
        steering => {
            let left = counted(report.remaining.len() as u64, "device interrupt");
            warn(format!("{steering}; {left} can still reach VMs' CPUs")).fix("steliactl noise")
        }
    }
}

/// irqbalance moves interrupts by itself, and knows nothing of partitions unless it is told.
pub(super) fn irqbalance(facts: &Facts) -> Finding {
    if !facts.irqbalance {
        return pass("not running");
    }
    let steered = facts.described.as_ref().map(|told| &told.node.quiet);
    let steered = steered.filter(|quiet| quiet.problem.is_none() && !matches!(quiet.steering.as_str(), "" | "off"));
    match steered.map(|quiet| quiet.report.irqbalance) {
        Some(Irqbalance::Informed) => pass("running, and has the list of the VMs' CPUs"),
        Some(Irqbalance::Absent) => pass("running; it gets the list once a VM has CPUs"),
        Some(Irqbalance::NotInformed) => {
            warn("running, and could not be sent the list of the VMs' CPUs").fix("steliactl noise")
        }
        None => warn("running: it may put interrupts on VMs' CPUs").fix(
            "switch on irq-steering, or set IRQBALANCE_BANNED_CPULIST to all but the reserved CPUs, or stop irqbalance",
        ),
    }
}

/// Whether the ledger is on, written and signed.
pub(super) fn ledger(facts: &Facts, told: &Description) -> Finding {
    let ledger = &told.node.ledger;
    if !ledger.enabled {
        return note("off").fix("set ledger = true in /etc/stelia/steliad.toml, systemctl reload steliad");
    }
    if let Some(problem) = &ledger.problem {
        return warn(problem).fix("journalctl -u steliad; df /var/lib/stelia");
    }
    if ledger.key.is_empty() {
        return warn("not signed: /var/lib/stelia/ledger/key is missing or of another machine")
            .fix("journalctl -u steliad");
    }
    if !facts.tracing {
        return note("cannot name tasks: tracefs is not mounted or not readable")
            .fix("run steliactl doctor as root; then see /sys/kernel/security/lockdown");
    }
    pass("written and signed")
}

/// The file for the cluster's publisher, as a publisher finds it.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) publication: Result<Publication, String>,
    /// Whether a daemon says by its lock that the file is true.
    pub(super) is_locked: bool,
}

impl Published {
    /// `root` is `/`.
    pub(super) fn read(root: &Path) -> Self {
        let folder = root.join(DIRECTORY.trim_start_matches('/'));
        let file = folder.join(FILE);
        let read = fs::read(&file).map_err(|cause| cause.to_string());
        let publication = read.and_then(|bytes| Publication::parse(&bytes).map_err(|cause| cause.to_string()));
        let lock = File::open(folder.join(LOCK));
        Self {
            publication: publication.map_err(|cause| format!("{}: {cause}", file.display())),
            is_locked: lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_err()),
        }
    }
}

/// Whether publishing is on, and the file true. Publishers treat one that is not as outdated.
pub(super) fn publish(facts: &Facts, told: &Description) -> Finding {
    let Some(profile) = &told.node.publishing.profile else {
        return pass("off: this node publishes nothing to the cluster");
    };
    let problem = match (&told.node.publishing.problem, &facts.published.publication) {
        (Some(problem), _) | (None, Err(problem)) => problem.clone(),
        (None, Ok(_)) if !facts.published.is_locked => format!("no daemon has locked {DIRECTORY}/{FILE}"),
        (None, Ok(file)) => return pass(format!("{profile}: {}", file.ready.reason)),
    };
    warn(problem).fix("journalctl -u steliad; df /run/stelia/publish")
}

/// How much memory of VMs is in `stelia.slice`, outside their pods' cgroups, where kubelet does not count it.
pub(super) fn vm_memory(_: &Facts, told: &Description) -> Finding {
    let slice = CgroupPath::slice();
    let outside = told.node.instances.iter();
    let outside = outside.filter(|(_, one)| one.scope.is_within(&slice));
    let (vms, bytes) = outside.fold((0, 0), |(vms, bytes), (pod, _)| {
        (
            vms + 1,
            bytes + told.usage.get(pod).map_or(0, |usage| usage.memory_bytes),
        )
    });
    if bytes == 0 {
        return pass("no VM's memory is outside its pod's cgroup");
    }
    note(format!(
            "{} of {} is in stelia.slice, where kubectl top, the limit of kubepods and kubelet's evictions do not count it",
            size(bytes),
            counted(vms, "VM")
        )).fix("set tree = \"auto\" in /etc/stelia/steliad.toml for new VMs (in-place.md), or reserve the memory in systemReserved")
}

/// The name of the plugin's process: the kernel cuts the program's name after 15 bytes.
pub(super) const PLUGIN_PROCESS: &str = "stelia-device-p";
/// How long systemd may take to answer.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);

/// `kubelet` is kubelet's root directory below `root`.
pub(super) fn has_plugin_folder(root: &Path, kubelet: &Path) -> Result<bool, String> {
    let folder = plugin_folder(root, kubelet);
    match fs::metadata(&folder) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(format!("{}: {cause}", folder.display())),
    }
}

#[proxy(
    interface = "org.freedesktop.systemd1.Service",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1/unit/steliad_2ddevice_2dplugin_2eservice"
)]
trait PluginUnit {
    #[zbus(property(emits_changed_signal = "false"))]
    fn status_text(&self) -> zbus::Result<String>;
}

/// The status of the plugin's unit; `None` where systemd does not answer, or the plugin said nothing.
pub(super) async fn plugin_status(connection: &Connection) -> Option<String> {
    let ask = async {
        let unit = PluginUnitProxy::builder(connection).cache_properties(CacheProperties::No);
        unit.build().await?.status_text().await
    };
    let text = timeout(STATUS_TIMEOUT, ask).await.ok()?.ok()?;
    (!text.is_empty()).then_some(text)
}

/// Whether the plugin runs, and kubelet knows of it: by kubelet's own record, by the status of the plugin's unit (`status.rs` in
/// `crates/device-plugin`), and by what the daemon says. Running VMs are not affected.
pub(super) fn device_plugin(facts: &Facts) -> Finding {
    const JOURNAL: &str = "journalctl -u steliad-device-plugin";
    const RESTART: &str = "systemctl restart steliad-device-plugin";
    match &facts.has_plugin_folder {
        Ok(true) => {}
        Ok(false) => return pass("off: kubelet has no plugin directory"),
        Err(problem) => return note(format!("cannot read {problem}")).fix("run steliactl doctor as root"),
    }
    if !facts.plugin {
        return warn(format!("not running: this node offers no {VM_RESOURCE}"))
            .fix(format!("systemctl enable --now steliad-device-plugin.path; {JOURNAL}"));
    }
    // kubelet's record does not change when a plugin leaves, so the plugin's own words come first.
    let offers = |status: &str| status.starts_with("registered") && !status.contains("unhealthy");
    if let Some(status) = facts.plugin_status.as_deref().filter(|status| !offers(status)) {
        return warn(status).fix(JOURNAL);
    }
    let state = match &facts.files.devices {
        Err(problem) => {
            return warn(problem.to_string()).fix(format!(
                "run steliactl doctor as root; if the file is damaged, {RESTART}"
            ));
        }
        Ok(state) => state.as_ref(),
    };
    let registered = state.and_then(|state| state.registered.get(VM_RESOURCE));
    let healthy = registered.map_or(0, BTreeSet::len);
    if healthy > 0 {
        let entries = state.iter().flat_map(|state| &state.entries);
        let of_pods = entries.filter(|entry| entry.resource == VM_RESOURCE).count();
        return pass(format!(
            "{healthy} {VM_RESOURCE} registered with kubelet, {of_pods} in kubelet's record of pods (ended ones too)"
        ));
    }
    if let Some(status) = &facts.plugin_status {
        let found = format!("the plugin says {status:?}, but kubelet's record has no healthy {VM_RESOURCE}");
        return warn(found).fix(RESTART);
    }
    let admission = facts.described.as_ref().map(|told| told.node.admission_text());
    let why = match admission.as_deref() {
        _ if registered.is_none() => "the plugin has not registered",
        _ if !facts.kvm => "/dev/kvm does not exist",
        None => "steliad does not answer",
        Some("") => "the plugin does not say why",
        Some(problem) => problem,
    };
    warn(format!("kubelet has no healthy {VM_RESOURCE}: {why}")).fix(JOURNAL)
}
