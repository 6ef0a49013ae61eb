//! Reads the kernel's files with few calls.

use std::collections::HashMap;
use std::fs;
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
    /// Replaces the bytes of `into` by those of the whole file.
    fn read(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()>;

    /// As [`read`](Self::read), for a file that the kernel returns in one piece, as all files of a thread are: a short read means the end
    /// of the file. The file stays open.
    fn read_short(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()>;

    /// The names of the folders in a folder, or the first ones of more than `most`.
    fn folders(&self, path: &str, most: usize) -> io::Result<Vec<String>>;

    /// Called at the end of a sample: files that it did not read may be closed, and all of them if it had no seats.
    fn end_sample(&self, _is_empty: bool) {}
}

/// The system's files, or those of another root.
pub(super) struct RootedFiles {
    root: String,
    /// Files of threads stay open between samples, so that each reading is one call instead of three. An open file belongs to its thread:
    /// reading it answers ESRCH once the thread has ended, even if another one has its number (proc_single_show in fs/proc/base.c).
    open: Mutex<HashMap<String, OpenFile>>,
}

struct OpenFile {
    file: OwnedFd,
    /// The number of samples since it was read.
    unread_samples: u32,
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
    fn read(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        into.clear();
        let file = self.open_file(path)?;
        loop {
            into.reserve(READ_CHUNK_BYTES);
            match read(&file, spare_capacity(into)) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read_short(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        // A panic does not leave the map half changed.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if !open.contains_key(path) {
            let file = self.open_file(path)?;
            open.insert(
                path.to_owned(),
                OpenFile {
                    file,
                    unread_samples: 0,
                },
            );
        }
        let Some(open_file) = open.get_mut(path) else {
            return Ok(());
        };
        open_file.unread_samples = 0;
        let result = read_from_start(&open_file.file, into);
        if result.is_err() {
            open.remove(path);
        }
        result
    }

    fn folders(&self, path: &str, most: usize) -> io::Result<Vec<String>> {
        let mut folders = Vec::new();
        for entry in fs::read_dir(format!("{}{path}", self.root))? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                continue;
            }
            let name = entry.file_name().into_string();
            folders.push(name.map_err(|_| io::ErrorKind::InvalidData)?);
            if folders.len() > most {
                break;
            }
        }
        Ok(folders)
    }

    fn end_sample(&self, is_empty: bool) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if is_empty {
            // The next sample may be much later.
            open.clear();
        }
        open.values_mut().for_each(|open_file| open_file.unread_samples += 1);
        open.retain(|_, open_file| open_file.unread_samples <= MAX_UNREAD_SAMPLES);
        open.shrink_to_fit();
    }
}

/// Reads an open file from its beginning; the kernel makes its text anew.
fn read_from_start(file: &OwnedFd, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    loop {
        into.reserve(READ_CHUNK_BYTES);
        let at = into.len() as u64;
        match pread(file, spare_capacity(into), at) {
            Ok(count) if count < READ_CHUNK_BYTES => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl RootedFiles {
    fn open_file(&self, path: &str) -> io::Result<OwnedFd> {
        let path = format!("{}{path}", self.root);
        Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use stelia_kernel::proc::is_gone;

    use super::*;

    #[test]
    fn a_file_is_read_whole_whatever_its_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = RootedFiles::new(&folder.path().display().to_string());
        let mut buffer = b"earlier text".to_vec();
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
            files.read("/file", &mut buffer).expect("text");
            assert_eq!(buffer, text);
            files.read_short("/file", &mut buffer).expect("text");
            assert_eq!(buffer, text);
        }
        assert!(is_gone(&files.read("/none", &mut buffer).expect_err("no file")));

        let open = || files.open.lock().expect("files").len();
        files.end_sample(false);
        assert_eq!(open(), 1);
        files.end_sample(true);
        assert_eq!(open(), 0, "without seats the next sample may be much later");
    }
}
