//! `rebalance`: move instances to better CPUs, and wait for the job's end.

use serde::Serialize;
use stelia_api::client::{JobProxy, MoveRow};
use stelia_koordinator::allocator::CpuSource;
use stelia_model::JobPhase;
use zbus::fdo;
use zbus::proxy::CacheProperties;

use crate::shared::daemon::signals::Signals;
use crate::shared::daemon::{Client, Description, Failure, Pod, Pods};
use crate::shared::output::{Column, Render, TextStyle, column, paragraph, printable, table};

/// The bus's errors for a daemon that is not running.
const DAEMON_GONE_ERRORS: [&str; 3] = [
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
];

/// Why nothing is moved where kubelet chooses.
const UP_TO_KUBELET: &str = "kubelet chose the CPUs of these VMs, and only a restart gives a VM others";

#[derive(Debug, Default, Serialize)]
pub(crate) struct Rebound {
    /// `None` for a dry run.
    job: Option<String>,
    phase: String,
    reason: String,
    moves: Vec<Move>,
}

#[derive(Debug, Clone, Serialize)]
struct Move {
    #[serde(flatten)]
    pod: Pod,
    from: String,
    to: String,
    gain: String,
}

const COLUMNS: [Column<Move>; 5] = [
    column("POD", |row: &Move| row.pod.to_string()).yields(1).shortens(),
    column("POD UID", |row: &Move| row.pod.pod_uid.clone()).wide(),
    column("FROM", |row: &Move| row.from.clone()).wraps(),
    column("TO", |row: &Move| row.to.clone()).wraps(),
    column("GAIN", |row: &Move| row.gain.clone()).wraps(),
];

/// The longest list of CPUs that a narrow column has on one line.
const MAX_LIST_WIDTH: usize = 15;

/// A list of CPUs that can be broken between two of its parts, where lines are laid out for a terminal: a number that is broken looks like
/// two.
fn breakable(cpus: &str, style: TextStyle) -> String {
    if style.width.is_some() && cpus.len() > MAX_LIST_WIDTH {
        cpus.replace(',', ", ")
    } else {
        cpus.to_owned()
    }
}

fn moves_table(moves: &[Move], style: TextStyle) -> String {
    let rows = moves.iter().map(|row| Move {
        from: breakable(&row.from, style),
        to: breakable(&row.to, style),
        ..row.clone()
    });
    let rows: Vec<Move> = rows.collect();
    table(&COLUMNS, &rows, style)
}

fn moves(rows: Vec<MoveRow>, pods: &Pods) -> Vec<Move> {
    let row = |(pod_uid, from, to, gain): MoveRow| Move {
        pod: pods.get(&pod_uid),
        from,
        to,
        gain,
    };
    rows.into_iter().map(row).collect()
}

/// A phase as people read it. JSON has Koordinator's name.
fn in_words(phase: &str) -> &str {
    if phase == JobPhase::Succeed.name() {
        "Succeeded"
    } else {
        phase
    }
}

/// Whether kubelet chose the CPUs of all VMs, so that no job can move one.
fn is_up_to_kubelet(description: &Description) -> bool {
    let node = &description.node;
    node.cpu_source != CpuSource::Steliad && node.instances.values().all(|one| one.allocation.is_none())
}

impl Render for Rebound {
    fn names(&self) -> Vec<String> {
        self.moves.iter().map(|row| row.pod.to_string()).collect()
    }

    fn text(&self, style: TextStyle) -> String {
        let mut text = match self.moves.as_slice() {
            [] => "Nothing to move.\n".to_owned(),
            moves => moves_table(moves, style),
        };
        if self.job.is_some() && style.legend {
            let end = format!("{}: {}", in_words(&self.phase), printable(&self.reason));
            text += &format!("\n{}", paragraph(&end, style));
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let failed = self.job.is_some() && self.phase != JobPhase::Succeed.name();
        failed.then(|| format!("the job is {}: {}", self.phase, printable(&self.reason)))
    }
}

/// Starts a job and waits for its end, or with a dry run only prints the plan.
///
/// # Errors
/// Kubelet chose the CPUs, the daemon refuses, or the connection ends.
pub(crate) async fn gather(
    client: &Client,
    vm: Option<&str>,
    deadline_s: u32,
    dry_run: bool,
) -> Result<Rebound, Failure> {
    let pod = match vm {
        Some(vm) => Some(client.find_for_change(vm).await?.pod.pod_uid),
        None => None,
    };
    let description = client.describe().await;
    if description.is_ok_and(|description| is_up_to_kubelet(&description)) {
        return Err(Failure::Other(UP_TO_KUBELET.to_owned()));
    }
    let scope = pod.unwrap_or_else(|| "node".to_owned());
    let pods = client.pods_running().await;
    let moves = |rows| moves(rows, &pods);
    let (path, planned) = client.rebind(&scope, deadline_s, dry_run).await?;
    if dry_run {
        return Ok(Rebound {
            moves: moves(planned),
            ..Rebound::default()
        });
    }
    // Subscribed before the first look, so that neither the job's end nor the daemon's is missed.
    let mut signals = Signals::subscribe(client.connection()).await?;
    let job = JobProxy::builder(client.connection())
        .cache_properties(CacheProperties::No)
        .path(&path)
        .build()
        .await?;
    while !signals.runs() || !client.answer_in_time(has_ended(&job)).await? {
        if signals.next().await.is_none() {
            return Err(Failure::Other("the connection ended; the job goes on".to_owned()));
        }
    }
    Ok(Rebound {
        phase: client.answer_in_time(job.phase()).await?,
        reason: client.answer_in_time(job.reason()).await?,
        moves: moves(client.answer_in_time(job.moves()).await?),
        job: Some(path.to_string()),
    })
}

/// Whether a job has ended. If the daemon is gone the answer is no: the next daemon reports the job's phase.
async fn has_ended(job: &JobProxy<'_>) -> zbus::Result<bool> {
    let gone = |error: &zbus::Error| match error {
        zbus::Error::MethodError(name, _, _) => DAEMON_GONE_ERRORS.contains(&name.as_str()),
        zbus::Error::FDO(error) => matches!(
            **error,
            fdo::Error::NoReply(_) | fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_)
        ),
        _ => false,
    };
    match job.phase().await {
        Err(error) if gone(&error) => Ok(false),
        phase => Ok(phase? != JobPhase::Pending.name()),
    }
}

#[cfg(test)]
mod tests {
    use stelia_koordinator::allocator::Qos;

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, allocation, instance_mut, node};
    use crate::tests::fixtures::{columns, says};

    #[test]
    fn a_job_that_succeeded_is_told_in_words_and_json_has_its_phase() {
        let done = Rebound {
            job: Some("/job/1".to_owned()),
            phase: JobPhase::Succeed.name().to_owned(),
            reason: "no move would be an improvement".to_owned(),
            ..Rebound::default()
        };
        assert_eq!(
            done.text(TextStyle::from(true)),
            "Nothing to move.\n\nSucceeded: no move would be an improvement\n"
        );
        assert_eq!(done.failure(), None);
        assert_eq!(serde_json::to_value(&done).unwrap()["phase"], "Succeed");
    }

    #[test]
    fn moves_lose_neither_cpus_nor_words_on_a_narrow_terminal() {
        let moved = Move {
            pod: Pod {
                pod_namespace: "kubevirt-tenants".to_owned(),
                pod_name: "virt-launcher-customer-database-003-4hvbp".to_owned(),
                ..Pod::default()
            },
            from: "1-2,4,9-10,12,101-102,104,109-110,112".to_owned(),
            to: "1-6,101-106".to_owned(),
            gain: "1 NUMA node instead of 2, 1 socket instead of 2".to_owned(),
        };
        let done = Rebound {
            moves: vec![moved],
            ..Rebound::default()
        };
        let narrow = columns(80);
        let text = done.text(narrow);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        says(&text, &["4,", "9-10,", "101-102,", "109-110,", "112"]);
        assert!(text.contains("4hvbp  ") && text.contains("1-6,101-106  "), "{text}");
        assert_eq!(text.matches("instead").count(), 2, "{text}");
        // What reads a pipe gets the list as the kernel writes it.
        let whole = done.text(TextStyle::from(true));
        assert!(whole.contains("1-2,4,9-10,12,101-102,104,109-110,112  "), "{whole}");
    }

    #[test]
    fn where_kubelet_chose_every_vms_cpus_nothing_can_be_moved() {
        let mut described = node();
        described.node.cpu_source = CpuSource::Kubelet;
        assert!(is_up_to_kubelet(&described));
        // It was admitted while steliad chose.
        instance_mut(&mut described, PODS[0]).allocation = Some(allocation(Qos::Lse));
        assert!(!is_up_to_kubelet(&described));
        instance_mut(&mut described, PODS[0]).allocation = None;
        described.node.cpu_source = CpuSource::Steliad;
        assert!(!is_up_to_kubelet(&described));
    }
}
