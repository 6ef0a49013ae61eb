//! What could not be read.

use std::collections::BTreeMap;

use serde::Serialize;
use stelia_koordinator::report::name;

/// Limit of the problems that are stored one by one: a dump may contain anything.
const MAX_PROBLEMS: usize = 200;
/// Limit of the problems that are printed.
const MAX_PRINTED_PROBLEMS: usize = 10;

/// An object that could not be read, or not wholly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file; empty for an object of the API server.
    pub source: String,
    /// Its kind and name, as far as it says them.
    pub object: String,
    pub what: String,
}

/// All of them; those beyond the first two hundred are counted only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    kept: Vec<Problem>,
    more: usize,
}

impl Problems {
    pub fn add(&mut self, source: &str, object: &str, what: &str) {
        if self.kept.len() == MAX_PROBLEMS {
            self.more += 1;
            return;
        }
        self.kept.push(Problem {
            source: source.to_owned(),
            object: object.to_owned(),
            what: what.to_owned(),
        });
    }

    pub fn stored(&self) -> &[Problem] {
        &self.kept
    }

    /// A line each, for standard error.
    pub fn lines(&self) -> Vec<String> {
        let line = |problem: &Problem| {
            let parts = [&problem.source, &problem.object, &problem.what];
            let parts = parts.into_iter().map(String::as_str);
            let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
            parts.join(": ")
        };
        let mut lines: Vec<String> = self.kept.iter().take(MAX_PRINTED_PROBLEMS).map(line).collect();
        let more = self.kept.len().saturating_sub(MAX_PRINTED_PROBLEMS) + self.more;
        if more > 0 {
            lines.push(format!("{more} more objects could not be read"));
        }
        lines
    }
}

/// Nodes and NodeResourceTopologies that were there and could not be read: why, by the node's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unreadable {
    pub nodes: BTreeMap<String, String>,
    pub reports: BTreeMap<String, String>,
    /// How many objects or texts do not say which node they describe.
    pub without_name: u64,
}

impl Unreadable {
    pub(super) fn add(&mut self, kind: &str, name: Option<&str>, cause: &str) {
        let name = name.and_then(|name| name::check(name.to_owned()).ok());
        match (kind, name) {
            // No node's health depends on one pod.
            ("Pod", _) => {}
            ("Node", Some(name)) => {
                self.nodes.insert(name, cause.to_owned());
            }
            ("NodeResourceTopology", Some(name)) => {
                self.reports.insert(name, cause.to_owned());
            }
            (_, _) => self.without_name += 1,
        }
    }
}
