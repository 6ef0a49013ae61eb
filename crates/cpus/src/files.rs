//! Small files of the kernel, each read with three system calls.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The kernel gathers lines in one page; a reader gets what fits.
pub(crate) const PAGE: usize = 4096;
/// The longest line of a file with more than one page: a process id of a `cgroup.procs`, with room to spare.
const LINE: usize = 64;

/// The whole file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_open(&rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The whole file, which is open and was not read. The kernel fills each page up to the first line that does not fit, or whole where the file has no
/// lines (`cmdline`). A read that leaves more than a line's room is therefore the last one, and no further read has to confirm the end.
pub fn read_open(file: impl AsFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PAGE);
    loop {
        bytes.reserve(PAGE);
        let had = bytes.len();
        let got = rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))?;
        if got == 0 || bytes.len() - had + LINE < PAGE {
            return Ok(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_any_length_is_read_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for length in [0, 1, PAGE - LINE - 1, PAGE - LINE, PAGE, PAGE + 1, 3 * PAGE + 7] {
            let bytes = vec![b'x'; length];
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path).unwrap(), bytes, "{length}");
        }
        assert_eq!(
            read(&directory.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
