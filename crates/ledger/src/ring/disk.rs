//! The four calls that a full or failing disk refuses. Tests have another disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};

use super::RingError;
use super::folder::Folder;

/// What writes.
pub trait Disk: Send {
    /// # Errors
    /// The system's.
    fn create(&mut self, folder: &Folder, name: &str) -> Result<File, RingError> {
        folder.create(name)
    }

    /// All of it; on an error a part may be written.
    ///
    /// # Errors
    /// The system's.
    fn write(&mut self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    /// # Errors
    /// The system's.
    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Reserves space for a file of this many bytes; the file's length stays. If that is not possible, nothing is reserved.
    fn reserve(&mut self, file: &File, bytes: u64) {
        reserve(file, bytes);
    }

    /// # Errors
    /// The system's.
    fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }
}

/// Space is only reserved if the file system has this many times as much left: other programs need some, too.
const MIN_FREE_FACTOR: u64 = 4;

/// Not each file system can: then the room is not reserved, and a full disk stops the writer earlier.
fn reserve(file: &File, bytes: u64) {
    let Ok(found) = fstatvfs(file) else { return };
    if found.f_bavail.saturating_mul(found.f_frsize) / MIN_FREE_FACTOR < bytes {
        return;
    }
    if fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes).is_err()
        && let Ok(there) = file.metadata()
    {
        // Some file systems keep the part that they could get: it is behind the file's end.
        let _ = file.set_len(there.len());
    }
}

/// The system's own.
#[derive(Debug)]
pub struct Kernel;

impl Disk for Kernel {}
