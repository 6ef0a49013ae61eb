//! The calls that fail on a full or broken disk. Tests replace them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};

use super::RingError;
use super::folder::Folder;

/// What a ring asks of its disk.
pub trait Disk: Send {
    fn create(&mut self, folder: &Folder, name: &str) -> Result<File, RingError> {
        folder.create(name)
    }

    /// Writes all bytes; on an error a part of them may be written.
    fn write(&mut self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Reserves space for a file of this many bytes; the file's length stays. If that is not possible, nothing is reserved.
    fn reserve(&mut self, file: &File, bytes: u64) {
        reserve(file, bytes);
    }

    fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }
}

/// Space is only reserved if the file system has this many times as much free, so that other programs have some left.
const MIN_FREE_FACTOR: u64 = 4;

/// Not every file system can reserve space. Without it, the writer fails as soon as the disk is full.
fn reserve(file: &File, bytes: u64) {
    let Ok(status) = fstatvfs(file) else { return };
    if status.f_bavail.saturating_mul(status.f_frsize) / MIN_FREE_FACTOR < bytes {
        return;
    }
    if fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes).is_err()
        && let Ok(metadata) = file.metadata()
    {
        // Some file systems keep a part of the reservation, which is behind the file's end.
        let _ = file.set_len(metadata.len());
    }
}

/// The system's disk.
#[derive(Debug)]
pub struct SystemDisk;

impl Disk for SystemDisk {}
