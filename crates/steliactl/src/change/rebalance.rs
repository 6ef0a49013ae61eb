//! `rebalance`: moves VMs to better CPUs, and waits until that is done.

use std::time::Duration;

use serde::Serialize;
use stelia_api::client::MoveRow;
use stelia_model::{Job, JobMove, JobPhase};
use tokio::time::{Instant, sleep};

use crate::shared::daemon::{Client, Failure, Mode, Pod, Pods, options};
use crate::shared::output::{Column, Render, TextStyle, column, counted, paragraph, printable, table};

/// How often the job is looked at: the answer has all VMs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the job may not be shown: a daemon that is started again goes on with it.
const MAX_AWAY: Duration = Duration::from_secs(30);

#[derive(Debug, Default, Serialize)]
pub(crate) struct Rebalanced {
    /// `None` for a dry run.
    job: Option<String>,
    phase: String,
    /// How the job ended.
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

const MOVES: [Column<Move>; 4] = [
    column("POD", |one: &Move| one.pod.to_string()).yields(1).shortens(),
    column("FROM", |one: &Move| one.from.clone()).wraps(),
    column("TO", |one: &Move| one.to.clone()).wraps(),
    column("GAIN", |one: &Move| one.gain.clone()).wraps(),
];

impl Render for Rebalanced {
    fn text(&self, style: TextStyle) -> String {
        let moves = self.moves.len() as u64;
        let count = counted(moves, "move");
        let end = match (&self.job, moves) {
            _ if self.failure().is_some() => format!("{}: {}", self.phase, self.reason),
            (_, 0) => "Nothing to move".to_owned(),
            (Some(_), _) => format!("Made {count}"),
            (None, _) => format!("Would make {count}"),
        };
        let mut text = String::new();
        if moves > 0 {
            text += &table(&MOVES, &self.moves, style);
            text += if style.legend { "\n" } else { "" };
        }
        if style.legend || moves == 0 {
            text += &paragraph(&printable(&format!("{end}.")), style);
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let failed = self.job.is_some() && self.phase != JobPhase::Succeed.name();
        failed.then(|| format!("the job is {}: {}", self.phase, printable(&self.reason)))
    }
}

/// Starts a job and waits for its end, or with a dry run only prints the plan.
pub(crate) async fn rebalance(
    client: &Client,
    vm: Option<&str>,
    deadline_s: u32,
    mode: Mode,
) -> Result<Rebalanced, Failure> {
    let scope = match vm {
        Some(vm) => client.find(vm).await?.pod.pod_uid,
        None => "node".to_owned(),
    };
    // A daemon that does not run is started by the job.
    let pods = client.describe().await.as_ref().map(Pods::of).unwrap_or_default();
    let moved = |(uid, from, to, gain): MoveRow| Move {
        pod: pods.get(&uid),
        from,
        to,
        gain,
    };
    let rebind = client.manager().rebind(&scope, deadline_s, options(mode));
    let (path, planned) = client.answer_while_alive(rebind).await?;
    if mode == Mode::DryRun {
        return Ok(Rebalanced {
            moves: planned.into_iter().map(moved).collect(),
            ..Rebalanced::default()
        });
    }
    let mut away: Option<Instant> = None;
    let job = loop {
        // This does not start a daemon that was stopped.
        let described = client.describe().await;
        let is_it = |job: &&Job| path.as_str().ends_with(&format!("/job/{}", job.id));
        let job = described.map(|described| described.node.jobs.iter().find(is_it).cloned());
        // The daemon answers before it shows the job.
        match job.and_then(|job| job.ok_or_else(|| Failure::Other(format!("the job is gone: {path}")))) {
            Ok(job) if job.phase == JobPhase::Pending => away = None,
            Ok(job) => break job,
            Err(cause) if away.get_or_insert_with(Instant::now).elapsed() > MAX_AWAY => return Err(cause),
            Err(_) => {}
        }
        sleep(POLL_INTERVAL).await;
    };
    let made = |one: JobMove| moved((one.pod, one.from.to_string(), one.to.to_string(), one.gain));
    Ok(Rebalanced {
        job: Some(path.to_string()),
        phase: job.phase.name().to_owned(),
        reason: job.reason,
        moves: job.moves.into_iter().map(made).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixtures::{pod, text};

    #[test]
    fn moves_are_told_with_their_gains_and_then_how_it_ended() {
        let moved = Move {
            pod: pod("u", "team-a/web"),
            from: "1-2,4,9-10".to_owned(),
            to: "1-5".to_owned(),
            gain: "1 NUMA node instead of 2".to_owned(),
        };
        let mut done = Rebalanced {
            job: Some("/job/1".to_owned()),
            phase: JobPhase::Succeed.name().to_owned(),
            reason: "all moves are made".to_owned(),
            moves: vec![moved],
        };
        insta::assert_snapshot!(text(&done), @"
        POD         FROM        TO   GAIN
        team-a/web  1-2,4,9-10  1-5  1 NUMA node instead of 2

        Made 1 move.
        ");
        assert_eq!(done.failure(), None);
        done.phase = JobPhase::Failed.name().to_owned();
        assert!(done.failure().is_some());
        done.job = None;
        assert!(text(&done).ends_with("Would make 1 move.\n"));
        let mut none = Rebalanced::default();
        assert_eq!(text(&none), "Nothing to move.\n");
        (none.job, none.phase) = (Some("/job/2".to_owned()), JobPhase::Succeed.name().to_owned());
        none.reason = "0 moves".to_owned();
        assert_eq!((text(&none).as_str(), none.failure()), ("Nothing to move.\n", None));
    }

    #[test]
    fn every_column_is_explained() {
        let explained = crate::shared::output::manual::explained("COLUMNS", Some("rebalance"));
        assert_eq!(explained, crate::tests::fixtures::headings(&MOVES));
    }
}
