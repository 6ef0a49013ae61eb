//! `reconcile`: runs a pass and prints its report, or the steps it would begin with.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::shared::daemon::{Client, Failure, Pods, lines_by_pod};
use crate::shared::output::{Render, TextStyle, members, printable};

/// The members' order in the D-Bus contract.
const ORDER: [&str; 6] = ["pass", "steps", "writes", "moves", "repaired", "degraded"];

#[derive(Debug, Serialize)]
pub(crate) struct Report(pub Map<String, Value>);

impl Render for Report {
    fn text(&self, style: TextStyle) -> String {
        members(&self.0, &ORDER, style)
    }
}

/// The answer of a dry run.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Steps {
    report: Map<String, Value>,
    #[serde(skip)]
    pods: Pods,
}

/// The steps that a pass would begin with.
///
/// # Errors
/// The daemon refuses or does not answer.
pub(crate) async fn preview(client: &Client) -> Result<Steps, Failure> {
    let report = client.reconcile(true).await?;
    let pods = Pods::of(&client.describe().await?);
    Ok(Steps { report, pods })
}

impl Render for Steps {
    fn text(&self, _: TextStyle) -> String {
        let steps = lines_by_pod(&self.report, "plan");
        let steps = steps.map(|(pod, step)| format!("{}: {}\n", self.pods.get(pod), printable(step)));
        match steps.collect::<String>() {
            none if none.is_empty() => "Nothing to do.\n".to_owned(),
            steps => steps,
        }
    }
}
