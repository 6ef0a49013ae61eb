//! Reading the kernel's files, as bytes and by few calls.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, read};

/// Bytes requested by one read. The kernel returns a page or a line of a large file.
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// Reads files of the kernel by absolute path.
pub(super) trait Files: Send {
    /// Replace what `into` has by the whole file.
    fn text(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()>;

    /// The same for a file that the kernel writes in one piece, as all files of one thread are: a short read means the end of the
    /// file.
    fn piece(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()>;

    /// Called at the end of a sample: files that it did not read may be closed, and all of them if it read no seat (`nothing`).
    fn ended(&self, _nothing: bool) {}
}

/// The system's files, or those of another root.
pub(super) struct RootedFiles {
    root: String,
    /// Files of threads stay open from look to look, so that each reading is one call and not three. Such a file is its thread's: where
    /// that ended it is ESRCH, and never another's with the same number (proc_single_show in the kernel's fs/proc/base.c).
    open: Mutex<HashMap<String, OpenFile>>,
}

struct OpenFile {
    file: OwnedFd,
    /// Looks since it was read.
    unread: u32,
}

/// A file is closed after this many samples that did not read it.
const MAX_UNREAD_SAMPLES: u32 = 20;

impl RootedFiles {
    pub(super) fn new(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            open: Mutex::default(),
        }
    }
}

impl Files for RootedFiles {
    fn text(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        self.read(path, into)
    }

    fn piece(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        // A panic leaves whole entries.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if !open.contains_key(path) {
            let file = self.opened(path)?;
            open.insert(path.to_owned(), OpenFile { file, unread: 0 });
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
            // The next sample may be far.
            open.clear();
        }
        open.values_mut().for_each(|known| known.unread += 1);
        open.retain(|_, known| known.unread <= MAX_UNREAD_SAMPLES);
        open.shrink_to_fit();
    }
}

/// From its beginning, which the kernel writes anew each time.
fn whole(file: &OwnedFd, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    loop {
        into.reserve(READ_CHUNK_BYTES);
        let at = into.len() as u64;
        match pread(file, spare_capacity(into), at) {
            Ok(got) if got < READ_CHUNK_BYTES => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl RootedFiles {
    fn opened(&self, path: &str) -> io::Result<OwnedFd> {
        let path = format!("{}{path}", self.root);
        Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn read(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        into.clear();
        let file = self.opened(path)?;
        loop {
            into.reserve(READ_CHUNK_BYTES);
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
        let files = RootedFiles::new(&folder.path().display().to_string());
        let mut buffer = b"what was there before".to_vec();
        for size in [
            0,
            1,
            READ_CHUNK_BYTES - 1,
            READ_CHUNK_BYTES,
            READ_CHUNK_BYTES + 1,
            5 * READ_CHUNK_BYTES,
        ] {
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
