//! What kubelet passes over in its configuration.

use kubelet_planner::start_errors::unknown_gates;

use super::Facts;
use super::checks::{Finding, ok, unknown, warning};

pub(super) fn check(facts: &Facts) -> Finding {
    let Ok(kubelet) = &facts.kubelet else {
        return unknown("kubelet's configuration cannot be read");
    };
    let warnings = kubelet.warnings.iter().map(ToString::to_string);
    let warnings: Vec<String> = warnings.chain(unknown_gates(kubelet)).collect();
    if warnings.is_empty() {
        ok("kubelet ignores nothing in it")
    } else {
        warning(
            warnings.join("; "),
            "correct or remove these keys: kubelet uses its default instead; another version of kubelet may know them",
        )
    }
}
