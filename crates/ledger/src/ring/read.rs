//! Reads entries in order, also while a writer in this or another process appends.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use stelia_cpus::text::excerpt;

use super::RingError;
use super::chain::Chain;
use super::folder::{Folder, first_entry, regular, segment_name};
use super::line_format::{Stub, split};
use super::line_reader::{Lines, Next};
use crate::entry::Entry;
use crate::verdict::Fault;

/// Entries in the order in which they were written, each checked against the one before.
///
/// With `since_us`, segments that begin before it are left out, except the last of them: the first window may begin with one of its readings.
/// All entries of the other segments are returned, including older ones. The realtime clock may jump, so the search goes from the oldest
/// segment to the first that begins at `since_us` or later: if the clock was set back, segments with earlier times follow and are read too.
/// Entries at or after `since_us` are only missed in a segment during which the clock was set ahead and back again.
///
/// # Errors
/// The system's. An empty directory is not an error.
pub fn entries(directory: &Path, since_us: Option<u64>) -> Result<Entries, RingError> {
    let folder = Folder::open(directory)?;
    let mut segments = folder.segments()?;
    if let Some(since) = since_us {
        // A segment whose first line cannot be read may have any time.
        let is_late = |first: &u64| begins_at(&folder, *first).is_none_or(|at| at >= since);
        let first_late = segments.iter().position(is_late).unwrap_or(segments.len());
        segments.drain(..first_late.saturating_sub(1));
    }
    let segments = named(segments);
    Ok(Entries::new(Source::Folder(folder), segments, false))
}

/// The segments' names, with the numbers of their first entries.
fn named(segments: impl IntoIterator<Item = u64>) -> VecDeque<(String, Option<u64>)> {
    let named = segments.into_iter().map(|first| (segment_name(first), Some(first)));
    named.collect()
}

/// The realtime clock of a segment's first entry.
fn begins_at(folder: &Folder, first: u64) -> Option<u64> {
    let mut lines = Lines::new(folder.read(&segment_name(first)).ok()??);
    match lines.advance().ok()? {
        Next::Line => serde_json::from_slice::<Stub>(split(lines.line())?.1)
            .ok()
            .map(|stub| stub.at),
        Next::TooLong | Next::End(_) => None,
    }
}

/// Where segments are.
#[derive(Debug)]
pub(super) enum Source {
    Folder(Folder),
    Files(Vec<PathBuf>),
}

/// Entries, and the faults between them; see [`entries`]. It holds one line in memory. It ends before a last line without a newline, which
/// is being written or was interrupted by a crash.
#[derive(Debug)]
pub struct Entries {
    source: Source,
    /// The names of the segments that were not read yet, and the numbers in them.
    segments: VecDeque<(String, Option<u64>)>,
    open: Option<OpenSegment>,
    chain: Chain,
    /// The entry of a line that also has a fault, to be returned after the fault.
    ready: Option<(Entry, String)>,
    /// Whether a last line without a newline is a fault, if a writer does not complete it in time.
    must_end: bool,
    done: bool,
    pub(super) progress: ReadProgress,
}

/// How much was read so far.
#[derive(Debug, Default)]
pub(super) struct ReadProgress {
    pub segments: u64,
    pub bytes: u64,
}

#[derive(Debug)]
struct OpenSegment {
    lines: Lines,
    name: String,
    first: Option<u64>,
    line: u64,
    /// Whether there were newer segments at its end, so that no line is appended any more.
    complete: bool,
}

/// How often an incomplete last line is read again: a writer completes a line within this time.
const MAX_LINE_RETRIES: u32 = 5;
const LINE_RETRY_INTERVAL: Duration = Duration::from_millis(20);

impl Entries {
    pub(super) fn new(source: Source, segments: VecDeque<(String, Option<u64>)>, must_end: bool) -> Self {
        Self {
            source,
            segments,
            open: None,
            chain: Chain::new(),
            ready: None,
            must_end,
            done: false,
            progress: ReadProgress::default(),
        }
    }

    pub(super) fn of_directory(directory: &Path) -> Result<Self, RingError> {
        let folder = Folder::open(directory)?;
        let segments = named(folder.segments()?);
        Ok(Self::new(Source::Folder(folder), segments, true))
    }

    pub(super) fn of_files(files: &[PathBuf]) -> Self {
        let mut files = files.to_vec();
        files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let segments = files.iter().map(name).map(|name| {
            let first = first_entry(&name);
            (name, first)
        });
        let segments = segments.collect();
        files.reverse();
        Self::new(Source::Files(files), segments, true)
    }

    /// A fault of the line that was read last.
    pub(super) fn fault(&self, text: impl ToString) -> Fault {
        let (segment, line) = self
            .open
            .as_ref()
            .map_or_else(Default::default, |open| (open.name.clone(), open.line));
        Fault {
            segment,
            line,
            text: text.to_string(),
        }
    }

    /// Opens the next segment; a fault if it cannot be opened, `None` if there is none.
    fn open_next(&mut self) -> Option<Result<(), Fault>> {
        let (name, first) = self.segments.pop_front()?;
        let fault = |text: String| Fault {
            segment: name.clone(),
            line: 0,
            text,
        };
        let file = match &mut self.source {
            Source::Folder(folder) => match folder.read(&name) {
                // The writer has removed it, with all segments before it.
                Ok(None) => {
                    let present = folder.segments().unwrap_or_default();
                    if present.first() < first.as_ref() {
                        self.chain.note_unreadable();
                        return Some(Err(fault("the segment is not there any more".to_owned())));
                    }
                    self.chain.restart();
                    self.segments = named(present);
                    return Some(Ok(()));
                }
                Ok(Some(file)) => Ok(file),
                Err(error) => Err(error),
            },
            Source::Files(files) => match files.pop() {
                Some(path) => open_regular(&path),
                None => return None,
            },
        };
        let Some(begin) = first else {
            self.chain.note_unreadable();
            return Some(Err(fault("this is not the name of a segment".to_owned())));
        };
        match file {
            Ok(file) => {
                self.chain
                    .begin_segment(begin, self.segments.front().and_then(|(_, next)| *next));
                self.progress.segments += 1;
                self.open = Some(OpenSegment {
                    lines: Lines::new(file),
                    name,
                    first,
                    line: 0,
                    complete: false,
                });
                Some(Ok(()))
            }
            Err(error) => {
                self.chain.note_unreadable();
                Some(Err(fault(excerpt::cause(&error))))
            }
        }
    }

    /// Handles the end of a segment, after this many bytes of an incomplete line.
    fn end_segment(&mut self, part: u64) -> Option<Fault> {
        if self.segments.is_empty()
            && let (Source::Folder(folder), Some(open)) = (&self.source, &mut self.open)
            && !open.complete
        {
            let newer = folder.segments().unwrap_or_default().into_iter();
            self.segments = named(newer.filter(|first| open.first < Some(*first)));
            open.complete = !self.segments.is_empty();
            if open.complete {
                return None;
            }
        }
        let is_last = self.segments.is_empty();
        let is_empty = self.open.as_ref().is_some_and(|open| open.line == 0) && part == 0;
        let text = match part {
            0 if is_empty && !is_last => Some("the segment is empty".to_owned()),
            1.. if !is_last || self.must_end => Some(format!(
                "{part} bytes without an end: a crash interrupted the writer, or something was cut off"
            )),
            _ => None,
        };
        if let Some(open) = self.open.as_mut().filter(|_| part > 0) {
            open.line += 1;
        }
        let fault = text.map(|text| self.fault(text));
        self.open = None;
        self.done = is_last;
        if fault.is_some() {
            self.chain.note_unreadable();
        }
        fault
    }

    /// Reads the next line. At the end of the last segment it may read again, because a writer may be writing a line.
    fn advance(&mut self) -> Option<std::io::Result<Next>> {
        let open = self.open.as_mut()?;
        let before = open.lines.offset();
        let mut next = open.lines.advance();
        let mut retries = if self.must_end && self.segments.is_empty() && matches!(self.source, Source::Folder(_)) {
            MAX_LINE_RETRIES
        } else {
            0
        };
        while retries > 0 && matches!(next, Ok(Next::End(1..))) {
            std::thread::sleep(LINE_RETRY_INTERVAL);
            retries -= 1;
            next = open.lines.advance();
        }
        self.progress.bytes += open.lines.offset() - before;
        Some(next)
    }
}

impl Iterator for Entries {
    type Item = Result<(Entry, String), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.take() {
                return Some(Ok(entry));
            }
            if self.done {
                return None;
            }
            let next = match self.advance() {
                Some(next) => next,
                None => match self.open_next()? {
                    Ok(()) => continue,
                    Err(fault) => return Some(Err(fault)),
                },
            };
            let Some(open) = &mut self.open else { continue };
            match next {
                Ok(Next::Line) => {
                    open.line += 1;
                    let first = open.first.filter(|_| open.line == 1);
                    let checked = self.chain.check(open.lines.line(), first);
                    self.ready = checked.entry.map(|(entry, hash)| (entry, hash.to_string()));
                    if let Some(text) = checked.fault {
                        return Some(Err(self.fault(text)));
                    }
                }
                Ok(Next::TooLong) => {
                    open.line += 1;
                    self.chain.note_unreadable();
                    return Some(Err(self.fault("this line is too long")));
                }
                Ok(Next::End(part)) => {
                    if let Some(fault) = self.end_segment(part) {
                        return Some(Err(fault));
                    }
                }
                Err(error) => {
                    let fault = self.fault(format!("it cannot be read: {error}"));
                    self.open = None;
                    self.chain.note_unreadable();
                    return Some(Err(fault));
                }
            }
        }
    }
}

/// Opens a file that the user named. Symbolic links are followed.
fn open_regular(path: &Path) -> Result<File, RingError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(RingError::system("open", path))?;
    regular(File::from(file), path)
}
