//! The ring's directory. Files are opened by name below the directory's descriptor, and no symbolic link is followed: the directory
//! belongs to root, but a link that root made there by mistake must not make the daemon write elsewhere.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use super::RingError;

const SUFFIX: &str = ".ledger";

/// The name of the segment that begins with this entry.
pub fn segment_name(first: u64) -> String {
    format!("{first:020}{SUFFIX}")
}

/// The number of a segment's first entry, by its name.
pub fn first_entry(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let all = digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|_| all)
}

/// The file, if it is a regular one.
pub fn regular(file: File, path: &Path) -> Result<File, RingError> {
    let metadata = file.metadata().map_err(RingError::system("look at", path))?;
    if metadata.is_file() {
        Ok(file)
    } else {
        Err(RingError::system("open", path)(io::Error::other(
            "it is no regular file",
        )))
    }
}

/// The directory is opened once, so it stays the same if it is renamed.
#[derive(Debug)]
pub struct Folder {
    directory: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Makes the directory with access for root alone, unless it exists.
    pub fn make(path: &Path) -> Result<Self, RingError> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Self::open(path),
            Err(error) => Err(RingError::system("make", path)(error)),
        }
    }

    pub fn open(path: &Path) -> Result<Self, RingError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(RingError::system("open", path))?;
        Ok(Self {
            directory,
            path: path.to_owned(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The numbers that segments begin with, ascending.
    pub fn segments(&self) -> Result<Vec<u64>, RingError> {
        let failed = || RingError::system("list", &self.path);
        let mut numbers = Vec::new();
        for entry in Dir::read_from(&self.directory).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            numbers.extend(entry.file_name().to_str().ok().and_then(first_entry));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// A file to read; `None` if there is none.
    ///
    /// # Errors
    /// The system's; anything but a regular file is refused.
    pub fn read(&self, name: &str) -> Result<Option<File>, RingError> {
        match self.open_regular(name, OFlags::RDONLY) {
            Ok(file) => Ok(Some(file)),
            Err(RingError::System { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A file to read and write.
    ///
    /// # Errors
    /// The system's; anything but a regular file is refused.
    pub fn write(&self, name: &str) -> Result<File, RingError> {
        self.open_regular(name, OFlags::RDWR)
    }

    /// A new file, for its owner alone.
    ///
    /// # Errors
    /// The system's, also if the file exists.
    pub fn create(&self, name: &str) -> Result<File, RingError> {
        self.open_regular(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// A file to read and write, which is made unless it exists.
    ///
    /// # Errors
    /// The system's; anything but a regular file is refused.
    pub fn create_or_open(&self, name: &str) -> Result<File, RingError> {
        self.open_regular(name, OFlags::RDWR | OFlags::CREATE)
    }

    fn open_regular(&self, name: &str, flags: OFlags) -> Result<File, RingError> {
        let path = self.path.join(name);
        // A FIFO under this name must not make us wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.directory, name, flags, mode).map_err(RingError::system("open", &path))?;
        regular(File::from(file), &path)
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, name: &str) -> Result<(), RingError> {
        match rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(RingError::system("remove", &self.path.join(name))(error)),
        }
    }

    /// Replaces a small file atomically.
    pub fn replace(&self, name: &str, text: &[u8]) -> Result<(), RingError> {
        let new = format!("{name}.new");
        self.remove(&new)?;
        let mut file = self.create(&new)?;
        let written = file.write_all(text).and_then(|()| file.sync_all());
        let done = written
            .map_err(RingError::system("write", &self.path.join(&new)))
            .and_then(|()| {
                rustix::fs::renameat(&self.directory, &new, &self.directory, name)
                    .map_err(RingError::system("replace", &self.path.join(name)))
            });
        if done.is_err() {
            // A file that is left over is removed by the next attempt.
            let _ = self.remove(&new);
        }
        done?;
        self.sync()
    }

    /// Makes new names in the directory survive a power loss.
    pub fn sync(&self) -> Result<(), RingError> {
        rustix::fs::fsync(self.directory.as_fd()).map_err(RingError::system("sync", &self.path))
    }
}
