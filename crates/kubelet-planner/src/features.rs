//! Which versions of kubelet have the settings, and which feature gates these need.
//!
//! kubelet guards the options of its policies in groups, by how mature they are: an alpha option needs the group's alpha gate,
//! which is off by default, a beta one the beta gate, which is on; a stable one needs none. With an option whose gate is off
//! kubelet does not start. The stages are those of Kubernetes' documentation of the managers, of its list of feature gates and
//! of the enhancements 2625, 2902, 3327, 3545, 4176, 4540, 4622 and 4800, up to 1.36.

use std::collections::BTreeMap;

use stelia_cpus::text::named;

/// The minor version of the kubelet that the planner predicts: 1.36.
pub const KUBELET: u32 = 36;

named! {
    /// How mature a feature is.
    #[derive(PartialOrd, Ord)]
    pub enum Stage {
        /// Off by default.
        Alpha = "alpha",
        /// On by default.
        Beta = "beta",
        /// Always there.
        Stable = "stable",
    }
}

/// A policy or an option of one of kubelet's managers.
#[derive(Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name in KubeletConfiguration.
    pub name: &'static str,
    /// The feature gates that it needs at stage alpha and at stage beta.
    gates: [&'static str; 2],
    /// Its stages, each with the minor version of Kubernetes that began it.
    pub stages: &'static [(Stage, u32)],
}

const CPU: [&str; 2] = ["CPUManager"; 2];
const MEMORY: [&str; 2] = ["MemoryManager"; 2];
const TOPOLOGY: [&str; 2] = ["TopologyManager"; 2];
const CPU_OPTIONS: [&str; 2] = ["CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions"];
const TOPOLOGY_OPTIONS: [&str; 2] = ["TopologyManagerPolicyAlphaOptions", "TopologyManagerPolicyBetaOptions"];

use Stage::{Alpha, Beta, Stable};

/// All settings that can be chosen, policies first.
#[rustfmt::skip]
pub const FEATURES: [Feature; 11] = [
    Feature { name: "cpuManagerPolicy", gates: CPU, stages: &[(Alpha, 8), (Beta, 10), (Stable, 26)] },
    Feature { name: "memoryManagerPolicy", gates: MEMORY, stages: &[(Alpha, 21), (Beta, 22), (Stable, 32)] },
    Feature { name: "topologyManagerPolicy", gates: TOPOLOGY, stages: &[(Alpha, 16), (Beta, 18), (Stable, 27)] },
    Feature { name: "full-pcpus-only", gates: CPU_OPTIONS, stages: &[(Alpha, 22), (Beta, 23), (Stable, 33)] },
    Feature { name: "distribute-cpus-across-numa", gates: CPU_OPTIONS, stages: &[(Alpha, 23), (Beta, 33)] },
    Feature { name: "align-by-socket", gates: CPU_OPTIONS, stages: &[(Alpha, 25)] },
    Feature { name: "distribute-cpus-across-cores", gates: CPU_OPTIONS, stages: &[(Alpha, 31)] },
    Feature { name: "strict-cpu-reservation", gates: CPU_OPTIONS, stages: &[(Alpha, 32), (Beta, 33), (Stable, 35)] },
    Feature { name: "prefer-align-cpus-by-uncorecache", gates: CPU_OPTIONS, stages: &[(Alpha, 32), (Beta, 34), (Stable, 36)] },
    Feature { name: "prefer-closest-numa-nodes", gates: TOPOLOGY_OPTIONS, stages: &[(Alpha, 26), (Beta, 28), (Stable, 32)] },
    Feature { name: "max-allowable-numa-nodes", gates: TOPOLOGY_OPTIONS, stages: &[(Beta, 31), (Stable, 35)] },
];

impl Feature {
    /// The stage in Kubernetes 1.`minor`; `None`: that version does not have it.
    pub fn stage(&self, minor: u32) -> Option<Stage> {
        let begun = self.stages.iter().rev().find(|(_, since)| *since <= minor);
        begun.map(|(stage, _)| *stage)
    }

    /// The feature gate that it needs in Kubernetes 1.`minor`, if any.
    pub fn gate(&self, minor: u32) -> Option<Gate> {
        let [alpha, beta] = self.gates;
        match self.stage(minor)? {
            stage @ Alpha => Some(Gate { name: alpha, stage }),
            stage @ Beta => Some(Gate { name: beta, stage }),
            Stable => None,
        }
    }

    /// Its stages in words: `alpha 1.23, beta 1.33`.
    pub fn history(&self) -> String {
        let stages = self.stages.iter();
        let stages: Vec<String> = stages
            .map(|(stage, since)| format!("{} 1.{since}", stage.name()))
            .collect();
        stages.join(", ")
    }
}

/// A feature gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// As in `featureGates` of KubeletConfiguration.
    pub name: &'static str,
    /// The stage of what it guards, which decides its default.
    pub stage: Stage,
}

impl Gate {
    /// Whether it is on in a kubelet with these `featureGates`: `AllAlpha` and `AllBeta` set the gates of their stage
    /// that are not named.
    pub fn is_on(self, set: &BTreeMap<String, bool>) -> bool {
        let all = match self.stage {
            Alpha => "AllAlpha",
            Beta | Stable => "AllBeta",
        };
        let set = set.get(self.name).or_else(|| set.get(all));
        set.copied().unwrap_or(self.stage != Alpha)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn feature(name: &str) -> &'static Feature {
        FEATURES.iter().find(|feature| feature.name == name).unwrap()
    }

    #[rstest]
    #[case("full-pcpus-only", 21, None, None)]
    #[case("full-pcpus-only", 22, Some(Alpha), Some("CPUManagerPolicyAlphaOptions"))]
    #[case("full-pcpus-only", 32, Some(Beta), Some("CPUManagerPolicyBetaOptions"))]
    #[case("full-pcpus-only", 33, Some(Stable), None)]
    #[case("align-by-socket", KUBELET, Some(Alpha), Some("CPUManagerPolicyAlphaOptions"))]
    #[case(
        "distribute-cpus-across-numa",
        KUBELET,
        Some(Beta),
        Some("CPUManagerPolicyBetaOptions")
    )]
    #[case("max-allowable-numa-nodes", 31, Some(Beta), Some("TopologyManagerPolicyBetaOptions"))]
    #[case("memoryManagerPolicy", 31, Some(Beta), Some("MemoryManager"))]
    fn a_feature_needs_the_gate_of_its_stage(
        #[case] name: &str,
        #[case] minor: u32,
        #[case] stage: Option<Stage>,
        #[case] gate: Option<&str>,
    ) {
        let feature = feature(name);
        assert_eq!(feature.stage(minor), stage);
        assert_eq!(feature.gate(minor).map(|gate| gate.name), gate);
    }

    #[rstest]
    #[case(&[], false, true)]
    #[case(&[("CPUManagerPolicyAlphaOptions", true), ("CPUManagerPolicyBetaOptions", false)], true, false)]
    #[case(&[("AllAlpha", true), ("AllBeta", false)], true, false)]
    #[case(&[("AllAlpha", true), ("CPUManagerPolicyAlphaOptions", false)], false, true)]
    #[case(&[("TopologyManagerPolicyAlphaOptions", true)], false, true)]
    fn a_gate_is_on_as_kubelet_was_told(#[case] told: &[(&str, bool)], #[case] alpha: bool, #[case] beta: bool) {
        let told = told.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
        let on = |name: &str| feature(name).gate(KUBELET).map(|gate| gate.is_on(&told));
        assert_eq!(on("align-by-socket"), Some(alpha));
        assert_eq!(on("distribute-cpus-across-numa"), Some(beta));
    }

    #[test]
    fn stages_follow_one_another() {
        for feature in &FEATURES {
            assert!(
                feature
                    .stages
                    .is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1),
                "{feature:?}"
            );
        }
        assert_eq!(
            feature("full-pcpus-only").history(),
            "alpha 1.22, beta 1.23, stable 1.33"
        );
    }
}
