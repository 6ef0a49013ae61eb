//! The writer, which appends lines.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::RingError;
use super::crash_recovery::RingRecovery;
use super::disk::{Disk, SystemDisk};
use super::folder::{Folder, segment_name};
use super::line_format::{self, Hash};
use super::trim::Limits;
use crate::entry::Entry;

/// The file that is locked while there is a writer.
const LOCK_FILE: &str = "lock";

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
pub(super) struct Segment {
    pub(super) first: u64,
    pub(super) bytes: u64,
}

/// The one writer of a ring.
pub struct Ring {
    pub(super) folder: Folder,
    /// Open while the ring is.
    _lock: File,
    pub(super) limits: Limits,
    pub(super) disk: Box<dyn Disk>,
    /// Ascending.
    pub(super) segments: VecDeque<Segment>,
    /// The last segment, unless the next entry begins a new one.
    pub(super) file: Option<File>,
    /// The number of the next entry, and the hash of the one before.
    pub(super) next: u64,
    pub(super) hash: Hash,
    /// Whether a write failed and its bytes could not be removed yet.
    has_partial_line: bool,
}

impl Ring {
    /// Makes the directory (mode 0700) unless it exists; its parent must exist.
    ///
    /// # Errors
    /// The system's, and [`RingError::Locked`] if there is another writer.
    pub fn open(directory: &Path, limits: Limits) -> Result<(Self, RingRecovery), RingError> {
        Self::open_on(Box::new(SystemDisk), directory, limits)
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
        let (line, hash) = line_format::write(&self.hash, entry)?;
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
