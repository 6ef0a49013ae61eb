//! Pod UIDs, the names of units and cgroups that contain them, and QoS classes.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use stelia_cpus::text::excerpt::excerpt;
use stelia_cpus::text::{json_string, named};

/// A pod's UID: a dashed UUID, or 32 hex digits for a static pod. Nothing else may become part of a unit's or file's
/// name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

/// The text is not a pod UID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pod UID (a dashed UUID, or 32 hex digits for a static pod)")]
pub struct BadPodUid(pub String);

impl PodUid {
    /// Accept a UID as kubelet writes it.
    ///
    /// # Errors
    /// [`BadPodUid`] with the beginning of the text.
    pub fn parse(text: &str) -> Result<Self, BadPodUid> {
        let bytes = text.as_bytes();
        let hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let good = match bytes.len() {
            32 => bytes.iter().all(hex),
            36 => bytes.iter().enumerate().all(|(index, byte)| match index {
                8 | 13 | 18 | 23 => *byte == b'-',
                _ => hex(byte),
            }),
            _ => false,
        };
        if good {
            Ok(Self(text.into()))
        } else {
            Err(BadPodUid(excerpt(text)))
        }
    }

    /// As kubelet writes it in its checkpoints.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A shell pattern that matches the names of all instances' scopes.
    pub const SCOPES: &str = "stelia-instance-*.scope";

    /// The name of the scope that holds the pod's instance.
    pub fn scope(&self) -> String {
        format!("stelia-instance-{}.scope", self.0)
    }

    /// The UID in a scope's name.
    pub fn from_scope(unit: &str) -> Option<Self> {
        Self::parse(unit.strip_prefix("stelia-instance-")?.strip_suffix(".scope")?).ok()
    }

    /// The UID in the name of a pod's cgroup; `top` is the name of the one that all pods are in, which tells the driver:
    /// `kubepods.slice` (systemd) or `kubepods` (cgroupfs).
    pub fn from_cgroup(top: &str, name: &str) -> Option<Self> {
        let uid = match top {
            "kubepods.slice" => {
                let name = name.strip_suffix(".slice")?;
                let uid = ["kubepods-pod", "kubepods-burstable-pod", "kubepods-besteffort-pod"]
                    .iter()
                    .find_map(|prefix| name.strip_prefix(prefix))?;
                // systemd reads a dash as a level of the hierarchy, so kubelet writes the UID with underscores.
                uid.replace('_', "-")
            }
            "kubepods" => name.strip_prefix("pod")?.to_owned(),
            _ => return None,
        };
        Self::parse(&uid).ok()
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The nil UUID (RFC 9562), which no pod has.
impl Default for PodUid {
    fn default() -> Self {
        Self("00000000-0000-0000-0000-000000000000".into())
    }
}

/// What is kept by UID is found by its text.
impl Borrow<str> for PodUid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

json_string!(PodUid, PodUid::parse);

named! {
    /// Kubernetes' QoS class of a pod, from the place of its cgroup.
    pub enum QosClass {
        /// Requests equal limits: directly below kubepods.
        Guaranteed = "Guaranteed",
        /// Some requests or limits.
        Burstable = "Burstable",
        /// No requests and no limits.
        BestEffort = "BestEffort",
    }
}

impl QosClass {
    /// The class of the container with this cgroup path, one that [`ContainerCgroup::parse`](crate::ContainerCgroup::parse) takes.
    pub fn of(path: &str) -> Self {
        let level = path.split('/').nth(2).unwrap_or_default();
        match level {
            "burstable" | "kubepods-burstable.slice" => Self::Burstable,
            "besteffort" | "kubepods-besteffort.slice" => Self::BestEffort,
            _ => Self::Guaranteed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const UID: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";

    #[rstest]
    #[case("")]
    #[case("../../etc")]
    #[case("b9e4f71c/64a5-4f8d-8574-41363cbaf8e5")]
    #[case("B9E4F71C-64a5-4f8d-8574-41363cbaf8e5")]
    fn what_is_no_uid_never_becomes_one(#[case] text: &str) {
        assert!(PodUid::parse(text).is_err());
    }

    #[test]
    fn a_scopes_name_gives_the_uid_back() {
        let uid = PodUid::parse(UID).unwrap();
        assert_eq!(PodUid::from_scope(&uid.scope()), Some(uid));
    }
}
