//! Makes irqbalance, which moves interrupts by itself, avoid the CPUs of VMs.
//!
//! irqbalance avoids the CPUs of `isolcpus=` and `nohz_full=`, but not those of partitions, and would move interrupts back to a
//! VM's CPUs. CPUs that are banned already, by its environment or by an administrator, stay banned: the list that is sent has
//! those and the VMs' CPUs. irqbalance loses the list when it restarts, so each order reads which irqbalance runs.
//!
//! An irqbalance without a socket is not restarted with a drop-in: a program that may write units below `/run/systemd/system`
//! and have systemd start them may do everything, and this program is to have few privileges. The report tells the
//! administrator what to configure instead.

mod protocol;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stelia_api::quiet::{Irqbalance, Report};
use stelia_cpus::CpuSet;
use stelia_kernel::clock::since_boot;
use stelia_kernel::proc::start_time;

use crate::failure::{QuietFailure, problem};
use crate::files::{Files, System};
use crate::order::Order;
use crate::store_json;
use protocol::Setup;

/// The directory of the sockets of irqbalance 1.7 and later. Earlier ones have abstract sockets, which a unit with its own
/// network namespace does not reach; distributions with systemd 252 have a later irqbalance.
pub const SOCKETS: &str = "/run/irqbalance";

/// The record's name in the store.
const RECORD: &str = "irqbalance.json";

/// The processes of its unit, which may have no socket.
const PROCESSES: &str = "/sys/fs/cgroup/system.slice/irqbalance.service/cgroup.procs";

/// The CPU list that was sent to one irqbalance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentBan {
    /// Ticks since boot, field 22 of its `stat`.
    start: u64,
    /// The CPUs that it bans apart from the list sent to it.
    base: CpuSet,
    /// The list that was sent last, or is being sent.
    ours: CpuSet,
    /// The lists that may have been in force before that, since an answer last showed the one in force.
    before: CpuSet,
    /// When the list was sent, in seconds since boot; 0: the next answer shows what is in force.
    at: u64,
}

/// By process ID.
type Record = BTreeMap<i32, SentBan>;

/// A running irqbalance.
struct Process {
    pid: i32,
    start: u64,
    socket: Option<PathBuf>,
}

/// Send every running irqbalance the CPUs to avoid. It follows at its next scan, which is before it moves anything; masks are
/// to be written after this. `sockets` is [`SOCKETS`].
///
/// # Cost
/// One message, and a second one if the list changes.
pub fn carry_out(system: System<'_>, sockets: &Path, order: &Order, report: &mut Report) {
    let vms = order.vms.values().filter(|_| order.steer);
    let exclusive: CpuSet = vms.flat_map(|vm| vm.cpus.iter()).collect();
    if let Err(failure) = send_bans(system, sockets, &exclusive, report) {
        report.irqbalance = Irqbalance::NotInformed;
        problem(report, "", failure);
    }
}

fn send_bans(system: System<'_>, sockets: &Path, exclusive: &CpuSet, report: &mut Report) -> Result<(), QuietFailure> {
    let mut record: Record = store_json::load(system.store, RECORD)?;
    if exclusive.is_empty() && record.is_empty() {
        return Ok(());
    }
    let saved = record.clone();
    let running = running(system.files, sockets)?;
    record.retain(|pid, sent| running.iter().any(|one| (one.pid, one.start) == (*pid, sent.start)));
    if record != saved {
        store_json::save(system.store, RECORD, &record)?;
    }
    for process in running {
        if exclusive.is_empty() && !record.contains_key(&process.pid) {
            continue;
        }
        let messages = send_ban(system, &process, exclusive, &mut record);
        report.irqbalance = match (&messages, report.irqbalance) {
            (Ok(_), Irqbalance::Absent) if exclusive.is_empty() => Irqbalance::Absent,
            (Ok(_), Irqbalance::Absent | Irqbalance::Informed) => Irqbalance::Informed,
            _ => Irqbalance::NotInformed,
        };
        match messages {
            Ok(count) => report.writes += count,
            Err(error) => problem(report, "", format!("irqbalance, process {}: {error}", process.pid)),
        }
    }
    Ok(())
}

/// Why the list could not be sent to an irqbalance.
#[derive(Debug, thiserror::Error)]
enum BanError {
    #[error(
        "it has no socket ({0}/irqbalance<pid>.sock) to be told by, and moves interrupts back to CPUs of VMs: write \
         IRQBALANCE_BANNED_CPULIST={1} to /etc/default/irqbalance (/etc/sysconfig/irqbalance on Fedora and RHEL) and restart \
         irqbalance.service, or stop it"
    )]
    NoSocket(String, CpuSet),
    #[error("the list {0} is longer than the {max} bytes that it takes in a message", max = protocol::MAX_LIST_BYTES)]
    TooLong(CpuSet),
    #[error(transparent)]
    Failed(#[from] QuietFailure),
}

/// Send the list to one irqbalance if it differs; returns the number of messages that changed something.
fn send_ban(system: System<'_>, process: &Process, exclusive: &CpuSet, record: &mut Record) -> Result<u32, BanError> {
    let Some(socket) = &process.socket else {
        return Err(BanError::NoSocket(SOCKETS.to_owned(), exclusive.clone()));
    };
    let shown = socket.display().to_string();
    let setup = protocol::setup(socket).map_err(QuietFailure::of("ask \"setup\" of", &shown))?;
    let now = since_boot().as_secs();
    let (sent, in_force) = last_ban(record.get(&process.pid), &setup, process.start, now);
    let want = sent.base.union(exclusive);
    let mut save = |sent: SentBan| {
        if record.get(&process.pid) == Some(&sent) {
            return Ok(());
        }
        record.insert(process.pid, sent);
        store_json::save(system.store, RECORD, record)
    };
    // The last list sent is compared too: irqbalance takes it at its next scan, which may be late.
    if want == in_force && want == sent.ours {
        save(sent)?;
        return Ok(0);
    }
    let message = protocol::ban(&want);
    if message.len() > protocol::MAX_LIST_BYTES {
        return Err(BanError::TooLong(want));
    }
    let next = SentBan {
        ours: want,
        before: sent.before.union(&in_force),
        at: now.max(1),
        ..sent
    };
    // The record is saved first: a ban that is not in it would be taken for the administrator's.
    save(next.clone())?;
    if let Err(cause) = protocol::exchange(socket, &message) {
        // Its next answer shows whether it received the message.
        save(SentBan { at: 0, ..next })?;
        return Err(QuietFailure::of(&format!("send {message:?} to"), &shown)(cause).into());
    }
    Ok(1)
}

/// The record's entry of an irqbalance, updated by its answer, and the CPUs that it bans now or will from its next scan on.
///
/// Its answer shows the state of its last scan, so it is used only if a scan can have happened since the last message. CPUs
/// that it bans then although they were not sent, or does not ban although they were, come from another program or the
/// administrator, and change the base.
fn last_ban(sent: Option<&SentBan>, setup: &Setup, start: u64, now: u64) -> (SentBan, CpuSet) {
    let banned = setup.banned.clone();
    let Some(sent) = sent else {
        let sent = SentBan {
            start,
            base: banned.clone(),
            ours: banned.clone(),
            before: banned.clone(),
            at: 0,
        };
        return (sent, banned);
    };
    // A scan may be skipped when CPUs go on- or offline, so two intervals pass until one has happened for certain.
    let scanned = sent.at == 0 || now >= sent.at.saturating_add(setup.interval.saturating_mul(2));
    if !scanned {
        return (sent.clone(), sent.ours.clone());
    }
    let added = banned.difference(&sent.ours.union(&sent.before));
    let lifted = sent.ours.intersection(&sent.before).difference(&banned);
    let sent = SentBan {
        base: sent.base.union(&added).difference(&lifted),
        before: sent.ours.clone(),
        at: 0,
        ..sent.clone()
    };
    (sent, banned)
}

/// Every running irqbalance: a process of its unit, or one that has a socket. Sockets of processes that ended are left out.
fn running(files: &dyn Files, sockets: &Path) -> Result<Vec<Process>, QuietFailure> {
    let shown = sockets.display().to_string();
    let mut found: BTreeMap<i32, Option<PathBuf>> = BTreeMap::new();
    if let Ok(text) = files.read(PROCESSES) {
        found.extend(
            text.split_whitespace()
                .filter_map(|pid| Some((pid.parse().ok()?, None))),
        );
    }
    let names = match std::fs::read_dir(sockets) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(QuietFailure::of("list", &shown))?,
    };
    for entry in names {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix("irqbalance")?.strip_suffix(".sock")?.parse().ok());
        found.extend(pid.map(|pid| (pid, Some(entry.path()))));
    }
    let running = found.into_iter().filter_map(|(pid, socket)| {
        let stat = files.read(&format!("/proc/{pid}/stat")).ok()?;
        let start = start_time(&stat)?;
        Some(Process { pid, start, socket })
    });
    Ok(running.collect())
}
