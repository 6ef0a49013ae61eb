//! Reading the kernel's files, as bytes and by few calls.

use std::io;

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};

/// How much is asked for at once. The kernel gives a page or a line of a large file.
const PORTION: usize = 16 * 1024;

/// Files of the kernel's, by absolute path.
pub(super) trait Files: Send {
    /// Replace what `into` has by the whole file.
    fn text(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()>;

    /// The same of a file that the kernel writes in one piece, as all of one thread are: that a read gave less than was asked for is
    /// its end.
    fn piece(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()>;
}

/// The system's files, or others below a folder.
pub(super) struct Below(pub(super) String);

impl Files for Below {
    fn text(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        self.read(path, into, |_| false)
    }

    fn piece(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        self.read(path, into, |got| got < PORTION)
    }
}

impl Below {
    fn read(&self, path: &str, into: &mut Vec<u8>, is_last: impl Fn(usize) -> bool) -> io::Result<()> {
        into.clear();
        let file = open(
            format!("{}{path}", self.0),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        loop {
            into.reserve(PORTION);
            match read(&file, spare_capacity(into)) {
                Ok(0) => return Ok(()),
                Ok(got) if is_last(got) => return Ok(()),
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
        let files = Below(folder.path().display().to_string());
        let mut buffer = b"what was there before".to_vec();
        for size in [0, 1, PORTION - 1, PORTION, PORTION + 1, 5 * PORTION] {
            let text = vec![b'x'; size];
            fs::write(folder.path().join("file"), &text).expect("a file");
            files.text("/file", &mut buffer).expect("text");
            assert_eq!(buffer, text);
            files.piece("/file", &mut buffer).expect("text");
            assert_eq!(buffer[..size.min(PORTION)], text[..size.min(PORTION)]);
        }
        assert!(is_gone(&files.text("/none", &mut buffer).expect_err("no file")));
    }
}
