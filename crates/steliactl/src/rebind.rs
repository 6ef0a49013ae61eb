//! `rebind`: move instances to better CPUs, and wait for the job's end.

use serde::Serialize;
use stelia_api::client::{JobProxy, MoveRow};
use zbus::fdo;
use zbus::proxy::CacheProperties;

use super::cli::Json;
use super::client::{Client, Failure};
use super::signals::Signals;
use super::view;

/// What the bus answers for a daemon that is gone.
const GONE: [&str; 3] = [
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
];

/// What is printed.
#[derive(Debug, Serialize)]
struct Printed {
    /// None for a dry run.
    job: Option<String>,
    phase: String,
    reason: String,
    moves: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    pod_uid: String,
    from: String,
    to: String,
    gain: String,
}

impl Printed {
    fn of(job: Option<String>, phase: &str, reason: String, moves: Vec<MoveRow>) -> Self {
        let row = |(pod_uid, from, to, gain)| Row {
            pod_uid,
            from,
            to,
            gain,
        };
        Self {
            job,
            phase: phase.to_owned(),
            reason,
            moves: moves.into_iter().map(row).collect(),
        }
    }

    fn text(&self, legend: bool) -> String {
        let row = |row: &Row| {
            let cells = [&row.pod_uid, &row.from, &row.to, &row.gain];
            cells.map(|cell| view::printable(cell)).to_vec()
        };
        let mut text = match self.moves.as_slice() {
            [] => "nothing to move\n".to_owned(),
            moves => view::table(
                &["POD", "FROM", "TO", "GAIN"],
                moves.iter().map(row).collect(),
                legend,
                None,
            ),
        };
        if self.job.is_some() && legend {
            text += &format!("\n{}: {}\n", self.phase, view::printable(&self.reason));
        }
        text
    }
}

/// Begin a job, or look what it would do; what is to be printed.
///
/// # Errors
/// The daemon refuses; [`Failure::Partial`] when the job does not succeed.
pub async fn run(
    client: &Client<'_>,
    uid: Option<&str>,
    deadline_s: u32,
    dry_run: bool,
    (json, legend): (Json, bool),
) -> Result<String, Failure> {
    let scope = match uid {
        Some(uid) => client.find(uid).await?.0,
        None => "node".to_owned(),
    };
    let (path, planned) = client.rebind(&scope, deadline_s, dry_run).await?;
    let print = |printed: &Printed| match json.is_on() {
        true => view::to_json(json, printed),
        false => printed.text(legend),
    };
    if dry_run {
        return Ok(print(&Printed::of(None, "", String::new(), planned)));
    }
    // Whatever happens from here on is heard, also that the daemon ends; the first look comes after it.
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
    let (phase, reason, moves) = (job.phase().await?, job.reason().await?, job.moves().await?);
    let printed = Printed::of(Some(path.to_string()), &phase, reason.clone(), moves);
    if phase == "Succeed" {
        return Ok(print(&printed));
    }
    Err(Failure::Partial {
        printed: print(&printed),
        reason: format!("the job is {phase}: {}", view::printable(&reason)),
    })
}

/// Whether a job has ended. A daemon that is gone has not said so: the next one will.
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
