//! How large the ring may become, and the removal of the oldest segments.

use super::RingError;
use super::folder::segment_name;
use super::line_format::MAX_LINE_BYTES;
use super::write::Ring;

/// Limits of the ring, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All segments together.
    pub bytes: u64,
    /// A segment that has reached this size is followed by a new one. Its last entry may exceed the limit.
    pub segment_bytes: u64,
}

impl Limits {
    /// Limits the segment size so that two segments fit, and there is always one to remove.
    pub(super) fn clamped(self) -> Self {
        Self {
            segment_bytes: self.segment_bytes.clamp(1, (self.bytes / 2).max(1)),
            ..self
        }
    }

    /// The longest line that still fits after a segment that is almost full.
    pub(super) fn max_line(self) -> usize {
        let rest = self.bytes.saturating_sub(self.segment_bytes);
        usize::try_from(rest).unwrap_or(MAX_LINE_BYTES).min(MAX_LINE_BYTES)
    }
}

impl Ring {
    fn bytes(&self) -> u64 {
        self.segments
            .iter()
            .fold(0, |sum, segment| sum.saturating_add(segment.bytes))
    }

    /// Removes the oldest segments while the ring is too large, except the last. Returns their number.
    pub(super) fn trim(&mut self) -> Result<u64, RingError> {
        let mut removed = 0;
        while self.bytes() > self.limits.bytes && self.segments.len() > 1 {
            let Some(oldest) = self.segments.front() else { break };
            self.folder.remove(&segment_name(oldest.first))?;
            self.segments.pop_front();
            removed += 1;
        }
        Ok(removed)
    }
}
