//! The writer: it repairs the last segment when it starts, and appends lines.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::RingError;
use super::disk::{Disk, Kernel};
use super::folder::{Folder, segment_name};
use super::line::{self, Hash, MAX_LINE_BYTES};
use super::tail::Tail;
use crate::entry::Entry;
use crate::verdict::Fault;

/// The file that is locked while there is a writer.
const LOCK_FILE: &str = "lock";

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
    fn clamped(self) -> Self {
        Self {
            segment_bytes: self.segment_bytes.clamp(1, (self.bytes / 2).max(1)),
            ..self
        }
    }

    /// The longest line that still fits after a segment that is almost full.
    fn max_line(self) -> usize {
        let rest = self.bytes.saturating_sub(self.segment_bytes);
        usize::try_from(rest).unwrap_or(MAX_LINE_BYTES).min(MAX_LINE_BYTES)
    }
}

/// The result of opening the ring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RingRecovery {
    /// Bytes that a crash left after the last complete line, and that were removed.
    pub cut: u64,
    /// Number and hash of the entry that the next one follows.
    pub last: Option<(u64, String)>,
    /// Another fault of the last segment, which is left as it is.
    pub fault: Option<Fault>,
}

/// The entry that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    pub seq: u64,
    /// 64 hexadecimal digits.
    pub hash: String,
    /// The line's length.
    pub bytes: u64,
    /// The number of segments that were removed for it, the oldest first.
    pub removed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    first: u64,
    bytes: u64,
}

/// The one writer of a ring.
pub struct Ring {
    folder: Folder,
    /// Open while the ring is.
    _lock: File,
    limits: Limits,
    disk: Box<dyn Disk>,
    /// Ascending.
    segments: VecDeque<Segment>,
    /// The last segment, unless the next entry begins a new one.
    file: Option<File>,
    /// The number of the next entry, and the hash of the one before.
    next: u64,
    hash: Hash,
    /// Whether a write failed and its bytes could not be removed yet.
    has_partial_line: bool,
}

impl Ring {
    /// Makes the directory (mode 0700) unless it exists; its parent must exist.
    ///
    /// # Errors
    /// The system's, and [`RingError::Locked`] if there is another writer.
    pub fn open(directory: &Path, limits: Limits) -> Result<(Self, RingRecovery), RingError> {
        Self::open_on(Box::new(Kernel), directory, limits)
    }

    pub(super) fn open_on(
        disk: Box<dyn Disk>,
        directory: &Path,
        limits: Limits,
    ) -> Result<(Self, RingRecovery), RingError> {
        let folder = Folder::make(directory)?;
        let lock = folder.create_or_open(LOCK_FILE)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(RingError::Locked(directory.to_owned())),
            Err(error) => return Err(RingError::system("lock", &directory.join(LOCK_FILE))(error)),
        }
        let mut segments = VecDeque::new();
        for first in folder.segments()? {
            let name = segment_name(first);
            let file = folder.read(&name)?;
            let metadata = file.map(|file| file.metadata()).transpose();
            let metadata = metadata.map_err(RingError::system("look at", &directory.join(&name)))?;
            segments.extend(metadata.map(|metadata| Segment {
                first,
                bytes: metadata.len(),
            }));
        }
        let mut ring = Self {
            folder,
            _lock: lock,
            limits: limits.clamped(),
            disk,
            segments,
            file: None,
            next: 1,
            hash: Hash::NONE,
            has_partial_line: false,
        };
        let recovery = ring.recover()?;
        if let Some(file) = &ring.file {
            ring.disk.reserve(file, ring.limits.segment_bytes);
        }
        Ok((ring, recovery))
    }

    /// Removes what a crash left, and sets the number and hash to continue with.
    fn recover(&mut self) -> Result<RingRecovery, RingError> {
        let mut recovery = RingRecovery::default();
        // Only one line was being written, so only one segment can have an incomplete one.
        let mut has_cut = false;
        let mut index = self.segments.len();
        while let Some(segment) = index.checked_sub(1).and_then(|last| self.segments.get(last)).copied() {
            index -= 1;
            let name = segment_name(segment.first);
            let path = self.folder.path().join(&name);
            let is_last = index + 1 == self.segments.len();
            let mut bytes = segment.bytes;
            if segment.bytes > 0 {
                let file = self.folder.write(&name)?;
                let reader = file.try_clone().map_err(RingError::system("open", &path))?;
                let tail = Tail::read(reader, &name, segment.first).map_err(RingError::system("read", &path))?;
                if is_last && !has_cut && tail.is_from_crash() {
                    let done = self
                        .disk
                        .cut(&file, tail.complete_bytes)
                        .and_then(|()| self.disk.sync(&file));
                    done.map_err(RingError::system("cut", &path))?;
                    recovery.cut = tail.rest_bytes;
                    bytes = tail.complete_bytes;
                    has_cut = true;
                }
                let is_clean = is_last && tail.fault.is_none() && tail.complete_bytes == bytes;
                recovery.fault = recovery.fault.or(tail.fault);
                // After the segment's first entry at least, even if no line can be read.
                self.next = self.next.max(segment.first.saturating_add(u64::from(bytes > 0)));
                if let (seq, Some(hash)) = tail.chain.next_entry() {
                    self.next = self.next.max(seq);
                    self.hash = hash;
                    self.file = Some(file).filter(|_| is_clean);
                    if let Some(segment) = self.segments.get_mut(index) {
                        segment.bytes = bytes;
                    }
                    recovery.last = Some((self.next - 1, hash.to_string()));
                    break;
                }
            }
            if is_last && bytes == 0 {
                self.folder.remove(&name)?;
                self.segments.pop_back();
                self.next = 1;
            }
        }
        Ok(recovery)
    }

    /// Sets the limits. The next entry removes segments that are too many.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits.clamped();
    }

    /// Number and hash of the last entry.
    pub fn head(&self) -> Option<(u64, String)> {
        (self.hash != Hash::NONE).then(|| (self.next - 1, self.hash.to_string()))
    }

    pub fn directory(&self) -> &Path {
        self.folder.path()
    }

    /// Whether the next entry is the first of a segment. It must then have all state, so that the segment can be read without older ones.
    pub fn starts_segment(&self) -> bool {
        let is_full = |segment: &Segment| segment.bytes == 0 || segment.bytes >= self.limits.segment_bytes;
        self.file.is_none() || self.segments.back().is_none_or(is_full)
    }

    /// Writes one entry, which gets its number, and waits until it is on the disk. If the ring is then too large, the oldest segments are
    /// removed, but not for an entry that could not be written: a full disk stops the ring and erases nothing of it.
    ///
    /// # Errors
    /// The system's, or the entry is too long. The entry is not in the ring then, and the next one can be written.
    pub fn append(&mut self, entry: &mut Entry) -> Result<Appended, RingError> {
        self.remove_partial_line()?;
        if self.next == u64::MAX {
            return Err(RingError::NoNumbers(self.folder.path().to_owned()));
        }
        let starts = self.starts_segment();
        entry.seq = self.next;
        entry.before = if starts { self.hash.to_string() } else { String::new() };
        let (line, hash) = line::write(&self.hash, entry)?;
        let max_line = self.limits.max_line();
        if line.len() > max_line {
            let bytes = line.len();
            return Err(RingError::TooLong { bytes, max_line });
        }
        let bytes = line.len() as u64;
        // After the limits were lowered, the entry may only fit once older segments are removed.
        let mut removed = self.trim()?;
        self.put(starts, &line)?;
        let seq = self.next;
        self.next += 1;
        self.hash = hash;
        // The entry is written even if the oldest segments cannot be removed; the next entry tries again.
        removed += self.trim().unwrap_or(0);
        Ok(Appended {
            seq,
            hash: hash.to_string(),
            bytes,
            removed,
        })
    }

    fn bytes(&self) -> u64 {
        self.segments
            .iter()
            .fold(0, |sum, segment| sum.saturating_add(segment.bytes))
    }

    /// Removes the oldest segments while the ring is too large, except the last. Returns their number.
    fn trim(&mut self) -> Result<u64, RingError> {
        let mut removed = 0;
        while self.bytes() > self.limits.bytes && self.segments.len() > 1 {
            let Some(oldest) = self.segments.front() else { break };
            self.folder.remove(&segment_name(oldest.first))?;
            self.segments.pop_front();
            removed += 1;
        }
        Ok(removed)
    }

    /// Writes one line at the end of the last segment, or to a new one.
    fn put(&mut self, starts: bool, line: &[u8]) -> Result<(), RingError> {
        // A failed attempt to begin a segment leaves an empty file with the right name.
        let is_begun = |segment: &Segment| segment.bytes == 0 && segment.first == self.next;
        if starts && !(self.file.is_some() && self.segments.back().is_some_and(is_begun)) {
            self.release_reserved();
            let file = self.disk.create(&self.folder, &segment_name(self.next))?;
            self.disk.reserve(&file, self.limits.segment_bytes);
            self.file = Some(file);
            self.segments.push_back(Segment {
                first: self.next,
                bytes: 0,
            });
        }
        let (Some(file), Some(segment)) = (&self.file, self.segments.back_mut()) else {
            return Ok(());
        };
        let path = self.folder.path().join(segment_name(segment.first));
        let written = self
            .disk
            .write(file, line, segment.bytes)
            .and_then(|()| self.disk.sync(file))
            .map_err(RingError::system("write", &path))
            .and_then(|()| if starts { self.folder.sync() } else { Ok(()) });
        match written {
            Ok(()) => segment.bytes += line.len() as u64,
            Err(error) => {
                self.has_partial_line = true;
                // If this fails too, the next entry tries again.
                let _ = self.remove_partial_line();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Releases the reserved space of a full segment.
    fn release_reserved(&mut self) {
        if let (Some(file), Some(segment)) = (self.file.take(), self.segments.back()) {
            // If this fails, the space stays reserved until the segment is removed. Lines are never cut off.
            if file.metadata().is_ok_and(|metadata| metadata.len() == segment.bytes) {
                let _ = self.disk.cut(&file, segment.bytes);
            }
        }
    }

    /// Removes the bytes of an entry that could not be written.
    fn remove_partial_line(&mut self) -> Result<(), RingError> {
        if let (true, Some(file), Some(segment)) = (self.has_partial_line, &self.file, self.segments.back()) {
            let path = self.folder.path().join(segment_name(segment.first));
            let cut = self.disk.cut(file, segment.bytes);
            cut.map_err(RingError::system("cut", &path))?;
            self.disk.reserve(file, self.limits.segment_bytes);
        }
        self.has_partial_line = false;
        Ok(())
    }
}
