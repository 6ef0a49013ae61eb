//! The four calls that a full or failing disk refuses. Tests have another disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

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

    /// # Errors
    /// The system's.
    fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }
}

/// The system's own.
#[derive(Debug)]
pub struct Kernel;

impl Disk for Kernel {}
