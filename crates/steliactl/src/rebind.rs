//! `rebind`: move instances to better CPUs, and wait for the job's end.

use serde::Serialize;
use stelia_api::client::{JobProxy, MoveRow};
use zbus::fdo;
use zbus::proxy::CacheProperties;

use super::client::{Client, Failure};
use super::signals::Signals;
use super::view::{Column, Render, column, list, printable};

/// The bus's errors for a daemon that is not running.
const GONE: [&str; 3] = [
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
];

#[derive(Debug, Serialize)]
pub(crate) struct Rebound {
    /// `None` for a dry run.
    job: Option<String>,
    phase: String,
    reason: String,
    moves: Vec<Move>,
}

#[derive(Debug, Serialize)]
struct Move {
    pod_uid: String,
    from: String,
    to: String,
    gain: String,
}

const COLUMNS: [Column<Move>; 4] = [
    column("POD", |row| row.pod_uid.clone()),
    column("FROM", |row| row.from.clone()),
    column("TO", |row| row.to.clone()),
    column("GAIN", |row| row.gain.clone()),
];

fn moves(rows: Vec<MoveRow>) -> Vec<Move> {
    let row = |(pod_uid, from, to, gain)| Move {
        pod_uid,
        from,
        to,
        gain,
    };
    rows.into_iter().map(row).collect()
}

impl Render for Rebound {
    fn text(&self, legend: bool) -> String {
        let mut text = match self.moves.as_slice() {
            [] => "nothing to move\n".to_owned(),
            moves => list(&COLUMNS, moves, legend),
        };
        if self.job.is_some() && legend {
            text += &format!("\n{}: {}\n", self.phase, printable(&self.reason));
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let failed = self.job.is_some() && self.phase != "Succeed";
        failed.then(|| format!("the job is {}: {}", self.phase, printable(&self.reason)))
    }
}

/// Starts a job and waits for its end, or with a dry run only prints the plan.
///
/// # Errors
/// The daemon refuses, or the connection ends.
pub(crate) async fn gather(
    client: &Client,
    uid: Option<&str>,
    deadline_s: u32,
    dry_run: bool,
) -> Result<Rebound, Failure> {
    let scope = match uid {
        Some(uid) => client.find(uid).await?.0,
        None => "node".to_owned(),
    };
    let (path, planned) = client.rebind(&scope, deadline_s, dry_run).await?;
    if dry_run {
        return Ok(Rebound {
            job: None,
            phase: String::new(),
            reason: String::new(),
            moves: moves(planned),
        });
    }
    // Subscribed before the first look, so that neither the job's end nor the daemon's is missed.
    let mut signals = Signals::subscribe(client.connection()).await?;
    let job = JobProxy::builder(client.connection())
        .cache_properties(CacheProperties::No)
        .path(&path)
        .build()
        .await?;
    while !signals.runs() || !has_ended(&job).await? {
        if signals.next().await.is_none() {
            return Err(Failure::Other("the connection ended; the job goes on".to_owned()));
        }
    }
    Ok(Rebound {
        phase: job.phase().await?,
        reason: job.reason().await?,
        moves: moves(job.moves().await?),
        job: Some(path.to_string()),
    })
}

/// Whether a job has ended. If the daemon is gone the answer is no: the next daemon reports the job's phase.
async fn has_ended(job: &JobProxy<'_>) -> zbus::Result<bool> {
    let gone = |error: &zbus::Error| match error {
        zbus::Error::MethodError(name, _, _) => GONE.contains(&name.as_str()),
        zbus::Error::FDO(error) => matches!(
            **error,
            fdo::Error::NoReply(_) | fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_)
        ),
        _ => false,
    };
    match job.phase().await {
        Err(error) if gone(&error) => Ok(false),
        phase => Ok(phase? != "Pending"),
    }
}
