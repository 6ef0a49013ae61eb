//! Entries, one after the other, for whoever reads: also while the writer writes, in this process or another.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use stelia_text::excerpt;

use super::RingError;
use super::chain::Chain;
use super::folder::{Folder, first_of, name_of};
use super::line::{Stub, split};
use super::lines::{Lines, Next};
use crate::entry::Entry;
use crate::verdict::Fault;

/// Entries in the order in which they were written, each checked against the one before.
///
/// With `since_us` older segments are left out, but for the last one that begins before: its readings are where the first window begins. All
/// entries from there on come, also those that are older; whoever reads chooses. The realtime clock may jump, so the search goes from the
/// oldest segment on and ends at the first that begins at `since_us` or later: of a clock that was set back, what was written before is
/// read too. What is left out although its time is later lies within one segment, whose clock was set ahead and back again before the
/// next one began.
///
/// # Errors
/// The system's. That the directory is empty is none.
pub fn entries(directory: &Path, since_us: Option<u64>) -> Result<Entries, RingError> {
    let folder = Folder::open(directory)?;
    let mut segments = folder.segments()?;
    if let Some(since) = since_us {
        // A segment whose first line cannot be read may be of any time.
        let late = |first: &u64| begins_at(&folder, *first).is_none_or(|at| at >= since);
        let late = segments.iter().position(late).unwrap_or(segments.len());
        segments.drain(..late.saturating_sub(1));
    }
    let left = segments
        .into_iter()
        .map(|first| (name_of(first), Some(first)))
        .collect();
    Ok(Entries::new(Source::Folder(folder), left, false))
}

/// The realtime clock of a segment's first entry.
fn begins_at(folder: &Folder, first: u64) -> Option<u64> {
    let mut lines = Lines::new(folder.read(&name_of(first)).ok()??);
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

/// Entries and what is wrong between them, see [`entries`]. It holds one line in memory. Where the last line has no end it is being written,
/// or a crash interrupted that: it ends before it.
#[derive(Debug)]
pub struct Entries {
    source: Source,
    /// Names, and the numbers in them.
    left: VecDeque<(String, Option<u64>)>,
    open: Option<OpenSegment>,
    chain: Chain,
    /// What a line was besides a fault.
    ready: Option<(Entry, String)>,
    /// A last line without its end is a fault, once it had the time to be written.
    whole: bool,
    done: bool,
    pub(super) seen: ReadProgress,
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
    /// Newer segments were found at its end: nothing is written to it any more.
    complete: bool,
}

/// How often an incomplete last line is read again: a writer completes a line within this time.
const MAX_LINE_RETRIES: u32 = 5;
const LINE_RETRY_INTERVAL: Duration = Duration::from_millis(20);

impl Entries {
    pub(super) fn new(source: Source, left: VecDeque<(String, Option<u64>)>, whole: bool) -> Self {
        Self {
            source,
            left,
            open: None,
            chain: Chain::new(),
            ready: None,
            whole,
            done: false,
            seen: ReadProgress::default(),
        }
    }

    pub(super) fn of_directory(directory: &Path) -> Result<Self, RingError> {
        let folder = Folder::open(directory)?;
        let left = folder.segments()?.into_iter();
        let left = left.map(|first| (name_of(first), Some(first))).collect();
        Ok(Self::new(Source::Folder(folder), left, true))
    }

    pub(super) fn of_files(files: &[PathBuf]) -> Self {
        let mut files = files.to_vec();
        files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let left = files.iter().map(name).map(|name| {
            let first = first_of(&name);
            (name, first)
        });
        let left = left.collect();
        files.reverse();
        Self::new(Source::Files(files), left, true)
    }

    /// The number of the segment's first entry and the line that was read last, for a fault.
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

    /// The next segment, a fault where it cannot be opened, `None` where there is none.
    fn open_next(&mut self) -> Option<Result<(), Fault>> {
        let (name, first) = self.left.pop_front()?;
        let fault = |text: String| Fault {
            segment: name.clone(),
            line: 0,
            text,
        };
        let file = match &mut self.source {
            Source::Folder(folder) => match folder.read(&name) {
                // The writer removed it meanwhile, and all before it.
                Ok(None) => {
                    let there = folder.segments().unwrap_or_default();
                    if there.first() < first.as_ref() {
                        self.chain.lose();
                        return Some(Err(fault("the segment is not there any more".to_owned())));
                    }
                    self.chain.forget();
                    self.left = there.into_iter().map(|first| (name_of(first), Some(first))).collect();
                    return Some(Ok(()));
                }
                Ok(Some(file)) => Ok(file),
                Err(error) => Err(error),
            },
            Source::Files(files) => match files.pop() {
                Some(path) => regular(&path),
                None => return None,
            },
        };
        let Some(begin) = first else {
            self.chain.lose();
            return Some(Err(fault("this is not the name of a segment".to_owned())));
        };
        match file {
            Ok(file) => {
                self.chain.begin(begin, self.left.front().and_then(|(_, next)| *next));
                self.seen.segments += 1;
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
                self.chain.lose();
                Some(Err(fault(excerpt::cause(&error))))
            }
        }
    }

    /// At the end of a segment, after this many bytes of an incomplete line.
    fn end(&mut self, part: u64) -> Option<Fault> {
        if self.left.is_empty()
            && let (Source::Folder(folder), Some(open)) = (&self.source, &mut self.open)
            && !open.complete
        {
            let newer = folder.segments().unwrap_or_default().into_iter();
            let newer = newer.filter(|first| open.first < Some(*first));
            self.left = newer.map(|first| (name_of(first), Some(first))).collect();
            open.complete = !self.left.is_empty();
            if open.complete {
                return None;
            }
        }
        let last = self.left.is_empty();
        let empty = self.open.as_ref().is_some_and(|open| open.line == 0) && part == 0;
        let text = match part {
            0 if empty && !last => Some("the segment is empty".to_owned()),
            1.. if !last || self.whole => Some(format!(
                "{part} bytes without an end: a crash interrupted the writer, or something was cut off"
            )),
            _ => None,
        };
        if let Some(open) = self.open.as_mut().filter(|_| part > 0) {
            open.line += 1;
        }
        let fault = text.map(|text| self.fault(text));
        self.open = None;
        self.done = last;
        if fault.is_some() {
            self.chain.lose();
        }
        fault
    }

    /// The next line. At the end of the last segment a writer may be in the middle of one.
    fn advance(&mut self) -> Option<std::io::Result<Next>> {
        let open = self.open.as_mut()?;
        let before = open.lines.at();
        let mut next = open.lines.advance();
        let mut retries = if self.whole && self.left.is_empty() && matches!(self.source, Source::Folder(_)) {
            MAX_LINE_RETRIES
        } else {
            0
        };
        while retries > 0 && matches!(next, Ok(Next::End(1..))) {
            std::thread::sleep(LINE_RETRY_INTERVAL);
            retries -= 1;
            next = open.lines.advance();
        }
        self.seen.bytes += open.lines.at() - before;
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
                    self.chain.lose();
                    return Some(Err(self.fault("this line is too long")));
                }
                Ok(Next::End(part)) => {
                    if let Some(fault) = self.end(part) {
                        return Some(Err(fault));
                    }
                }
                Err(error) => {
                    let fault = self.fault(format!("it cannot be read: {error}"));
                    self.open = None;
                    self.chain.lose();
                    return Some(Err(fault));
                }
            }
        }
    }
}

/// A file that somebody named. It may be anywhere, and a symbolic link.
fn regular(path: &Path) -> Result<File, RingError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(RingError::system("open", path))?);
    let found = file.metadata().map_err(RingError::system("look at", path))?;
    if found.is_file() {
        Ok(file)
    } else {
        Err(RingError::system("open", path)(std::io::Error::other(
            "it is no regular file",
        )))
    }
}
