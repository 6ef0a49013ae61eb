//! Makes irqbalance, which moves interrupts by itself, avoid the CPUs of VMs.
//!
//! It knows `isolcpus=` and `nohz_full=` of the boot and no partitions, and would move back what is moved off a VM's CPUs. What it has
//! banned already, by its environment or by an administrator, stays banned: our list is that one and the VMs' CPUs. It forgets ours
//! when it is started again, so each order looks which irqbalance runs.
//!
//! One without a socket is not restarted with a drop-in: who may write units below `/run/systemd/system` and have systemd start
//! them may do everything, and this program is to be able to do little. The administrator is told what to write instead.

mod protocol;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stelia_api::quiet::{Irqbalance, Report};
use stelia_cpus::CpuSet;
use stelia_node::proc::start_time;

use crate::failure::{Failure, problem};
use crate::files::{Files, System};
use crate::order::Order;
use crate::record;
use protocol::Setup;

/// Where irqbalance 1.7 and later have their sockets. Earlier ones have abstract sockets, which a unit with a network of its own
/// does not reach; what has systemd 252 has a later irqbalance.
pub const SOCKETS: &str = "/run/irqbalance";

/// The record in the store.
const RECORD: &str = "irqbalance.json";

/// The processes of its unit, for one that has no socket.
const PROCESSES: &str = "/sys/fs/cgroup/system.slice/irqbalance.service/cgroup.procs";

/// The CPU list that was sent to one irqbalance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentBan {
    /// Ticks since boot, field 22 of its `stat`.
    start: u64,
    /// The CPUs that it bans itself.
    base: CpuSet,
    /// The list that was sent last, or is being sent.
    ours: CpuSet,
    /// The list before that, since its answer last counted: after a crash either may be in force.
    before: CpuSet,
    /// Seconds since boot; 0: its answer counts at once.
    at: u64,
}

/// By process.
type Record = BTreeMap<i32, SentBan>;

/// An irqbalance that runs.
struct Process {
    pid: i32,
    start: u64,
    socket: Option<PathBuf>,
}

/// Tell every irqbalance that runs which CPUs to leave alone. It follows at its next scan, which is before it moves anything;
/// masks are to be written after this. `sockets` is [`SOCKETS`].
///
/// # Cost
/// One question; a second message where the list changes.
pub fn carry_out(system: System<'_>, sockets: &Path, order: &Order, report: &mut Report) {
    let mut exclusive = CpuSet::new();
    if order.steer {
        order.vms.values().for_each(|vm| exclusive.union_with(&vm.cpus));
    }
    if let Err(failure) = carry(system, sockets, &exclusive, report) {
        report.irqbalance = Irqbalance::NotInformed;
        problem(report, "", failure);
    }
}

fn carry(system: System<'_>, sockets: &Path, exclusive: &CpuSet, report: &mut Report) -> Result<(), Failure> {
    let mut record: Record = record::load(system.store, RECORD)?;
    if exclusive.is_empty() && record.is_empty() {
        return Ok(());
    }
    let saved = record.clone();
    let running = running(system.files, sockets)?;
    record.retain(|pid, told| running.iter().any(|one| (one.pid, one.start) == (*pid, told.start)));
    if record != saved {
        record::save(system.store, RECORD, &record)?;
    }
    for process in running {
        if exclusive.is_empty() && !record.contains_key(&process.pid) {
            continue;
        }
        let told = send_ban(system, &process, exclusive, &mut record);
        report.irqbalance = match (&told, report.irqbalance) {
            (Ok(_), Irqbalance::Absent) if exclusive.is_empty() => Irqbalance::Absent,
            (Ok(_), Irqbalance::Absent | Irqbalance::Informed) => Irqbalance::Informed,
            _ => Irqbalance::NotInformed,
        };
        match told {
            Ok(writes) => report.writes += writes,
            Err(why) => problem(report, "", format!("irqbalance, process {}: {why}", process.pid)),
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
    Failed(#[from] Failure),
}

/// Tell one; how many messages changed something.
fn send_ban(system: System<'_>, process: &Process, exclusive: &CpuSet, record: &mut Record) -> Result<u32, BanError> {
    let Some(socket) = &process.socket else {
        return Err(BanError::NoSocket(SOCKETS.to_owned(), exclusive.clone()));
    };
    let shown = socket.display().to_string();
    let setup = protocol::setup(socket).map_err(Failure::of("ask \"setup\" of", &shown))?;
    let now = seconds_since_boot();
    let (told, in_force) = last_ban(record.get(&process.pid), &setup, process.start, now);
    let want = told.base.union(exclusive);
    let mut change = |told: SentBan| {
        if record.get(&process.pid) == Some(&told) {
            return Ok(());
        }
        record.insert(process.pid, told);
        record::save(system.store, RECORD, record)
    };
    // What it was told last may still be before its next scan, however late that is.
    if want == in_force && want == told.ours {
        change(told)?;
        return Ok(0);
    }
    let message = protocol::ban(&want);
    if message.len() > protocol::MAX_LIST_BYTES {
        return Err(BanError::TooLong(want));
    }
    let next = SentBan {
        ours: want,
        before: told.before.union(&in_force),
        at: now.max(1),
        ..told
    };
    // First the record: of a ban that is in none nobody would know whose it is.
    change(next.clone())?;
    if let Err(cause) = protocol::exchange(socket, &message) {
        // Whether it was heard is seen by its next answer.
        change(SentBan { at: 0, ..next })?;
        return Err(Failure::of(&format!("send {message:?} to"), &shown)(cause).into());
    }
    Ok(1)
}

/// What is known of an irqbalance with what it answers now, and what it bans, or will by its next scan.
///
/// Its answer is that of its last scan, so it counts once there was time for one. What it bans then that we did not tell it, or
/// does not ban although we did, is somebody else's wish and belongs to the base.
fn last_ban(told: Option<&SentBan>, setup: &Setup, start: u64, now: u64) -> (SentBan, CpuSet) {
    let banned = setup.banned.clone();
    let Some(told) = told else {
        let told = SentBan {
            start,
            base: banned.clone(),
            ours: banned.clone(),
            before: banned.clone(),
            at: 0,
        };
        return (told, banned);
    };
    // It scans at the next turn of its clock, and once more where that one was skipped for a change of the CPUs.
    let settled = told.at == 0 || now >= told.at.saturating_add(setup.interval.saturating_mul(2));
    if !settled {
        return (told.clone(), told.ours.clone());
    }
    let added = banned.difference(&told.ours.union(&told.before));
    let lifted = told.ours.intersection(&told.before).difference(&banned);
    let told = SentBan {
        base: told.base.union(&added).difference(&lifted),
        before: told.ours.clone(),
        at: 0,
        ..told.clone()
    };
    (told, banned)
}

/// Every irqbalance that has a socket or is its unit's. A socket whose process ended is nobody's.
fn running(files: &dyn Files, sockets: &Path) -> Result<Vec<Process>, Failure> {
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
            .map_err(Failure::of("list", &shown))?,
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

fn seconds_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0)
}
