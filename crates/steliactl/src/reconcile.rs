//! `reconcile`: runs a pass and prints its report, or the steps it would begin with.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::verify::lines;
use crate::view::{Render, members, printable};

/// The members' order in the D-Bus contract.
const ORDER: [&str; 6] = ["pass", "steps", "writes", "moves", "repaired", "degraded"];

#[derive(Debug, Serialize)]
pub(crate) struct Report(pub Map<String, Value>);

impl Render for Report {
    fn text(&self, _: bool) -> String {
        members(&self.0, &ORDER)
    }
}

/// The answer of a dry run.
#[derive(Debug, Serialize)]
pub(crate) struct Steps(pub Map<String, Value>);

impl Render for Steps {
    fn text(&self, _: bool) -> String {
        let steps = lines(&self.0, "plan");
        steps
            .map(|(pod, step)| format!("{pod}: {}\n", printable(step)))
            .collect()
    }
}
