//! The properties of the Manager.

use stelia_model::Node;

use super::properties_changed::Property;
use super::reasons::reason_rows;

/// The properties that may change, with the values that the Manager's getters return.
pub(super) const PROPERTIES: [Property<Node>; 7] = [
    ("AdmissionProblem", |node| node.admission_text().into()),
    ("NodeProblems", |node| reason_rows(&node.problems()).into()),
    ("DriftFound", |node| node.counters.drift_found.into()),
    ("DriftRepaired", |node| node.counters.drift_repaired.into()),
    ("LedgerKey", |node| node.ledger.key.as_str().into()),
    ("SharedCPUs", |node| node.shared_cpus().to_string().into()),
    ("VmCapacity", |node| node.vm_capacity.into()),
];
