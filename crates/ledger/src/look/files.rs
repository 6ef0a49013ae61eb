//! Reading the kernel's files, as bytes and by few calls.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, read};

/// How much is asked for at once. The kernel gives a page or a line of a large file.
const PORTION: usize = 16 * 1024;

/// Files of the kernel's, by absolute path.
pub(super) trait Files: Send {
    /// Replace what `into` has by the whole file.
    fn text(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()>;

    /// The same of a file that the kernel writes in one piece, as all of one thread are: that a read gave less than was asked for is
    /// its end.
    fn piece(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()>;

    /// A look has ended: files that it did not read need not stay open, and none where it looked at `nothing`.
    fn ended(&self, _nothing: bool) {}
}

/// The system's files, or others below a folder.
pub(super) struct Below {
    root: String,
    /// Files of threads stay open from look to look, so that each reading is one call and not three. Such a file is its thread's: where
    /// that ended it is ESRCH, and never another's with the same number (proc_single_show in the kernel's fs/proc/base.c).
    open: Mutex<HashMap<String, Opened>>,
}

struct Opened {
    file: OwnedFd,
    /// Looks since it was read.
    unread: u32,
}

/// After so many looks that did not read it a file is closed.
const UNREAD: u32 = 20;

impl Below {
    pub(super) fn new(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            open: Mutex::default(),
        }
    }
}

impl Files for Below {
    fn text(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        self.read(path, into)
    }

    fn piece(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        // A panic leaves whole entries.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if !open.contains_key(path) {
            let file = self.opened(path)?;
            open.insert(path.to_owned(), Opened { file, unread: 0 });
        }
        let Some(known) = open.get_mut(path) else { return Ok(()) };
        known.unread = 0;
        let read = whole(&known.file, into);
        if read.is_err() {
            open.remove(path);
        }
        read
    }

    fn ended(&self, nothing: bool) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if nothing {
            // The next look may be far.
            open.clear();
        }
        open.values_mut().for_each(|known| known.unread += 1);
        open.retain(|_, known| known.unread <= UNREAD);
        open.shrink_to_fit();
    }
}

/// From its beginning, which the kernel writes anew each time.
fn whole(file: &OwnedFd, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    loop {
        into.reserve(PORTION);
        let at = into.len() as u64;
        match pread(file, spare_capacity(into), at) {
            Ok(got) if got < PORTION => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Below {
    fn opened(&self, path: &str) -> io::Result<OwnedFd> {
        let path = format!("{}{path}", self.root);
        Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn read(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        into.clear();
        let file = self.opened(path)?;
        loop {
            into.reserve(PORTION);
            match read(&file, spare_capacity(into)) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether the thread whose file this is has ended.
pub(super) fn is_gone(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code == Some(Errno::NOENT.raw_os_error()) || code == Some(Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_read_whole_whatever_its_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Below::new(&folder.path().display().to_string());
        let mut buffer = b"what was there before".to_vec();
        for size in [0, 1, PORTION - 1, PORTION, PORTION + 1, 5 * PORTION] {
            let text = vec![b'x'; size];
            fs::write(folder.path().join("file"), &text).expect("a file");
            files.text("/file", &mut buffer).expect("text");
            assert_eq!(buffer, text);
            files.piece("/file", &mut buffer).expect("text");
            assert_eq!(buffer, text);
        }
        assert!(is_gone(&files.text("/none", &mut buffer).expect_err("no file")));

        let open = || files.open.lock().expect("files").len();
        files.ended(false);
        assert_eq!(open(), 1);
        files.ended(true);
        assert_eq!(open(), 0, "nothing is looked at: perhaps not for a long time");
    }
}
