//! The writer: what it finds when it starts, and one line after the other.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::RingError;
use super::disk::{Disk, Kernel};
use super::folder::{Folder, name_of};
use super::line::{self, Hash, MAX_LINE_BYTES};
use super::tail::Tail;
use crate::entry::Entry;
use crate::verdict::Fault;

/// Its descriptor is locked while there is a writer.
const LOCK: &str = "lock";

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All segments together.
    pub bytes: u64,
    /// A segment that has as much is the last one no longer. It is larger by what its last entry has beyond that.
    pub segment_bytes: u64,
}

impl Limits {
    /// Two segments have room, so that there is always one to remove.
    fn sensible(self) -> Self {
        Self {
            segment_bytes: self.segment_bytes.clamp(1, (self.bytes / 2).max(1)),
            ..self
        }
    }

    /// The longest line that still fits behind a segment that is almost full.
    fn max_line(self) -> usize {
        let left = self.bytes.saturating_sub(self.segment_bytes);
        usize::try_from(left).unwrap_or(MAX_LINE_BYTES).min(MAX_LINE_BYTES)
    }
}

/// What opening the ring found in its last segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RingRecovery {
    /// Bytes that a crash left after the last complete line; they were cut off.
    pub cut: u64,
    /// Number and hash of the entry that the next one follows.
    pub last: Option<(u64, String)>,
    /// Something else is wrong in the last segment. It stays as it is.
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
    /// Segments that were removed for it, the oldest ones.
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
    /// Held open.
    _lock: File,
    limits: Limits,
    disk: Box<dyn Disk>,
    /// Ascending.
    segments: VecDeque<Segment>,
    /// The last of them, where more is written to it.
    file: Option<File>,
    /// The number of the next entry, and the hash of the one before.
    next: u64,
    hash: Hash,
    /// A write failed, and what there was of it could not be taken back yet.
    uncut: bool,
}

impl Ring {
    /// Makes the directory (mode 0700) where there is none; its parent must be there.
    ///
    /// # Errors
    /// The system's, and [`RingError::Locked`] where there is another writer.
    pub fn open(directory: &Path, limits: Limits) -> Result<(Self, RingRecovery), RingError> {
        Self::open_on(Box::new(Kernel), directory, limits)
    }

    pub(super) fn open_on(
        disk: Box<dyn Disk>,
        directory: &Path,
        limits: Limits,
    ) -> Result<(Self, RingRecovery), RingError> {
        let folder = Folder::make(directory)?;
        let lock = folder.create_or_open(LOCK)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(RingError::Locked(directory.to_owned())),
            Err(error) => return Err(RingError::system("lock", &directory.join(LOCK))(error)),
        }
        let mut segments = VecDeque::new();
        for first in folder.segments()? {
            let name = name_of(first);
            let file = folder.read(&name)?;
            let found = file.map(|file| file.metadata()).transpose();
            let found = found.map_err(RingError::system("look at", &directory.join(&name)))?;
            segments.extend(found.map(|found| Segment {
                first,
                bytes: found.len(),
            }));
        }
        let mut ring = Self {
            folder,
            _lock: lock,
            limits: limits.sensible(),
            disk,
            segments,
            file: None,
            next: 1,
            hash: Hash::NONE,
            uncut: false,
        };
        let found = ring.find_end()?;
        if let Some(file) = &ring.file {
            ring.disk.reserve(file, ring.limits.segment_bytes);
        }
        Ok((ring, found))
    }

    /// Cut what a crash left, and find where to go on.
    fn find_end(&mut self) -> Result<RingRecovery, RingError> {
        let mut found = RingRecovery::default();
        // One line was being written, so there is one place to cut.
        let mut cut = false;
        let mut index = self.segments.len();
        while let Some(segment) = index.checked_sub(1).and_then(|last| self.segments.get(last)).copied() {
            index -= 1;
            let name = name_of(segment.first);
            let path = self.folder.path().join(&name);
            let last = index + 1 == self.segments.len();
            let mut whole = segment.bytes;
            if segment.bytes > 0 {
                let file = self.folder.write(&name)?;
                let reader = file.try_clone().map_err(RingError::system("open", &path))?;
                let tail = Tail::sample(reader, &name, segment.first).map_err(RingError::system("read", &path))?;
                if last && !cut && tail.is_torn() {
                    let done = self.disk.cut(&file, tail.whole).and_then(|()| self.disk.sync(&file));
                    done.map_err(RingError::system("cut", &path))?;
                    found.cut = tail.rest;
                    whole = tail.whole;
                    cut = true;
                }
                let clean = last && tail.fault.is_none() && tail.whole == whole;
                found.fault = found.fault.or(tail.fault);
                // Behind a segment that stays as it is, whatever is in it.
                self.next = self.next.max(segment.first.saturating_add(u64::from(whole > 0)));
                if let (seq, Some(hash)) = tail.chain.end() {
                    self.next = self.next.max(seq);
                    self.hash = hash;
                    self.file = Some(file).filter(|_| clean);
                    if let Some(segment) = self.segments.get_mut(index) {
                        segment.bytes = whole;
                    }
                    found.last = Some((self.next - 1, hash.to_string()));
                    break;
                }
            }
            if last && whole == 0 {
                self.folder.remove(&name)?;
                self.segments.pop_back();
                self.next = 1;
            }
        }
        Ok(found)
    }

    /// Limits for the next entry. What is too much is removed when that is written.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits.sensible();
    }

    /// Number and hash of the last entry.
    pub fn head(&self) -> Option<(u64, String)> {
        (self.hash != Hash::NONE).then(|| (self.next - 1, self.hash.to_string()))
    }

    pub fn directory(&self) -> &Path {
        self.folder.path()
    }

    /// Whether the next entry is the first of a segment. Then it must say all that is needed to read the segment alone.
    pub fn starts_segment(&self) -> bool {
        let full = |segment: &Segment| segment.bytes == 0 || segment.bytes >= self.limits.segment_bytes;
        self.file.is_none() || self.segments.back().is_none_or(full)
    }

    /// Write one entry, which gets its number, and wait until it is on the disk. Where there is too much with it the oldest segments are
    /// removed afterwards: nothing is removed for an entry that could not be written. So whoever fills the disk stops the ring, and erases
    /// nothing of it.
    ///
    /// # Errors
    /// The system's, or the entry is too long. Nothing of the entry is there then, and the next one can be written.
    pub fn append(&mut self, entry: &mut Entry) -> Result<Appended, RingError> {
        self.take_back()?;
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
        // Limits that became smaller are to make room also where there is none for another entry.
        let mut removed = self.trim()?;
        self.put(starts, &line)?;
        let seq = self.next;
        self.next += 1;
        self.hash = hash;
        // The entry is there, whatever becomes of the oldest ones: they are tried again with the next.
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

    /// Remove the oldest segments for as long as all together are too much; the last one stays. Answers how many.
    fn trim(&mut self) -> Result<u64, RingError> {
        let mut removed = 0;
        while self.bytes() > self.limits.bytes && self.segments.len() > 1 {
            let Some(oldest) = self.segments.front() else { break };
            self.folder.remove(&name_of(oldest.first))?;
            self.segments.pop_front();
            removed += 1;
        }
        Ok(removed)
    }

    /// One line at the end of the last segment, or of a new one.
    fn put(&mut self, starts: bool, line: &[u8]) -> Result<(), RingError> {
        // What a failed attempt to begin a segment left is an empty file with the right name.
        let begun = |segment: &Segment| segment.bytes == 0 && segment.first == self.next;
        if starts && !(self.file.is_some() && self.segments.back().is_some_and(begun)) {
            self.give_back();
            let file = self.disk.create(&self.folder, &name_of(self.next))?;
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
        let path = self.folder.path().join(name_of(segment.first));
        let written = self
            .disk
            .write(file, line, segment.bytes)
            .and_then(|()| self.disk.sync(file))
            .map_err(RingError::system("write", &path))
            .and_then(|()| if starts { self.folder.sync() } else { Ok(()) });
        match written {
            Ok(()) => segment.bytes += line.len() as u64,
            Err(error) => {
                self.uncut = true;
                // Where this fails too it is tried again before the next entry.
                let _ = self.take_back();
                return Err(error);
            }
        }
        Ok(())
    }

    /// A segment that is full needs no more room than it has.
    fn give_back(&mut self) {
        if let (Some(file), Some(segment)) = (self.file.take(), self.segments.back()) {
            // Where this fails the room stays reserved, until the segment is removed. Nothing that is in the file is cut off.
            if file.metadata().is_ok_and(|found| found.len() == segment.bytes) {
                let _ = self.disk.cut(&file, segment.bytes);
            }
        }
    }

    /// Remove what is there of an entry that could not be written.
    fn take_back(&mut self) -> Result<(), RingError> {
        if let (true, Some(file), Some(segment)) = (self.uncut, &self.file, self.segments.back()) {
            let path = self.folder.path().join(name_of(segment.first));
            let cut = self.disk.cut(file, segment.bytes);
            cut.map_err(RingError::system("cut", &path))?;
            self.disk.reserve(file, self.limits.segment_bytes);
        }
        self.uncut = false;
        Ok(())
    }
}
