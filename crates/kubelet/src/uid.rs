//! A pod's UID in 16 bytes.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::PodUid;

/// A pod's UID as a number, for programs that store the UIDs of a whole cluster: the 32 hex digits of a [`PodUid`], without the dashes
/// that a static pod's UID does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub u128);

impl Uid {
    /// The number of a UID.
    pub fn of(uid: &PodUid) -> Self {
        let digits = uid.as_str().chars().filter_map(|digit| digit.to_digit(16));
        Self(digits.fold(0, |number, digit| number << 4 | u128::from(digit)))
    }

    /// The number of a UID as text; `None` if the text is not a pod's UID.
    pub fn parse(text: &str) -> Option<Self> {
        PodUid::parse(text).ok().map(|uid| Self::of(&uid))
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Uid {
    /// With dashes, also for a static pod.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let ends = [0, 8, 12, 16, 20, 32];
        let parts = ends.windows(2).filter_map(|ends| digits.get(ends[0]..ends[1]));
        f.write_str(&parts.collect::<Vec<_>>().join("-"))
    }
}
