//! The feature gates of kubelet 1.36 (`pkg/features`, and those of the libraries that register theirs with it).

use std::sync::LazyLock;

/// Every feature gate, and the two names that stand for a stage.
pub(super) static ALL_GATES: LazyLock<Vec<&str>> = LazyLock::new(|| include_str!("gates.txt").lines().collect());

/// Those that are on for good: kubelet does not start where one is turned off.
pub(super) static LOCKED: LazyLock<Vec<&str>> = LazyLock::new(|| include_str!("locked-gates.txt").lines().collect());

/// A gate, and those of the managers and of pods' resources that have to be on where it is.
pub(super) const NEEDS: [(&str, &[&str]); 5] = [
    (
        "InPlacePodLevelResourcesVerticalScaling",
        &["InPlacePodVerticalScaling", "PodLevelResources", "NodeDeclaredFeatures"],
    ),
    ("InPlacePodVerticalScalingExclusiveCPUs", &["InPlacePodVerticalScaling"]),
    (
        "InPlacePodVerticalScalingExclusiveMemory",
        &["InPlacePodVerticalScaling"],
    ),
    (
        "InPlacePodVerticalScalingInitContainers",
        &["InPlacePodVerticalScaling", "NodeDeclaredFeatures"],
    ),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
];

/// The gates of [`NEEDS`], each with its default.
pub(super) const DEFAULTS: [(&str, bool); 7] = [
    ("InPlacePodVerticalScaling", true),
    ("InPlacePodLevelResourcesVerticalScaling", true),
    ("InPlacePodVerticalScalingExclusiveCPUs", false),
    ("InPlacePodVerticalScalingExclusiveMemory", false),
    ("InPlacePodVerticalScalingInitContainers", true),
    ("NodeDeclaredFeatures", true),
    ("PodLevelResources", true),
];
