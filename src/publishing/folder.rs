//! The folder that the cluster's publisher has mounted, and the two files in it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use stelia_api::publication::{FILE, LOCK, MAX_FILE_BYTES};

/// Where the file is kept. All of it may block.
pub(crate) trait Folder: Send + Sync {
    /// The file as it is; `None` where there is none that could be read.
    fn read(&self) -> Option<Vec<u8>>;

    /// Replace the file whole, with the lock held: it is up to date from now on.
    ///
    /// # Errors
    /// Operation, path and cause. What is there is the former file, and the lock is not held.
    fn write(&self, bytes: &[u8]) -> Result<(), String>;

    /// The file is up to date without being written.
    ///
    /// # Errors
    /// As of [`Folder::write`].
    fn hold(&self) -> Result<(), String>;

    /// Remove the file, and let go of the lock. The folder stays: pods have it mounted.
    ///
    /// # Errors
    /// Operation, path and cause.
    fn remove(&self) -> Result<(), String>;
}

pub(crate) struct Directory {
    path: PathBuf,
    /// Locked while it is here.
    lock: Mutex<Option<File>>,
}

impl Directory {
    /// Nothing is made or read.
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            lock: Mutex::default(),
        }
    }

    fn file(&self) -> PathBuf {
        self.path.join(FILE)
    }

    fn temporary(&self, name: &str) -> PathBuf {
        self.path.join(format!(".{name}.new"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<File>> {
        // Replaced whole, or not at all.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, bytes: &[u8]) -> Result<(), String> {
        let (temporary, file) = (self.temporary(FILE), self.file());
        let written = fs::write(&temporary, bytes)
            .and_then(|()| fs::set_permissions(&temporary, Permissions::from_mode(0o644)))
            .map_err(in_words("write", &temporary))
            .and_then(|()| fs::rename(&temporary, &file).map_err(in_words("replace", &file)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Whether what is locked is still what is there by that name.
    fn is_held(&self, held: &File) -> bool {
        let there = fs::symlink_metadata(self.path.join(LOCK));
        let same = held
            .metadata()
            .and_then(|held| Ok((held.dev(), held.ino()) == there.map(|there| (there.dev(), there.ino()))?));
        same.unwrap_or_default()
    }

    /// A new file in place of the lock's, locked before it has the name: whoever watches the folder is told, and nobody who may read the
    /// former one, and so lock it, is in the way.
    fn take_lock(&self) -> Result<File, String> {
        let (temporary, path) = (self.temporary(LOCK), self.path.join(LOCK));
        if !self.path.is_dir() {
            fs::create_dir_all(&self.path).map_err(in_words("make", &self.path))?;
        }
        // One that a daemon left which died just here.
        let _ = fs::remove_file(&temporary);
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o644);
        let file = options.open(&temporary).map_err(in_words("make", &temporary))?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        locked.map_err(|cause| in_words("lock", &temporary)(cause.into()))?;
        fs::rename(&temporary, &path).map_err(in_words("replace", &path))?;
        Ok(file)
    }
}

fn in_words(what: &str, path: &Path) -> impl Fn(std::io::Error) -> String {
    move |cause| format!("{what} {}: {cause}", path.display())
}

impl Folder for Directory {
    fn read(&self) -> Option<Vec<u8>> {
        let file = self.file();
        let length = fs::metadata(&file).ok()?.len();
        (length <= MAX_FILE_BYTES as u64).then(|| fs::read(&file).ok())?
    }

    fn write(&self, bytes: &[u8]) -> Result<(), String> {
        self.hold()?;
        let replaced = self.replace(bytes);
        if replaced.is_err() {
            *self.lock() = None;
        }
        replaced
    }

    fn hold(&self) -> Result<(), String> {
        let mut lock = self.lock();
        if lock.as_ref().is_some_and(|held| self.is_held(held)) {
            return Ok(());
        }
        *lock = None;
        *lock = Some(self.take_lock()?);
        Ok(())
    }

    fn remove(&self) -> Result<(), String> {
        for file in [self.file(), self.temporary(FILE), self.temporary(LOCK)] {
            match fs::remove_file(&file) {
                Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(in_words("remove", &file)(cause)),
                _ => {}
            }
        }
        *self.lock() = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn is_locked(path: &Path) -> bool {
        let file = File::open(path.join(LOCK)).unwrap();
        flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    #[test]
    fn the_file_is_replaced_whole_readable_by_all_and_locked_while_it_is_true() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("publish");
        let folder = Directory::new(&path);
        assert_eq!(folder.read(), None);
        assert!(!path.exists(), "reading makes nothing");
        folder.write(b"one").unwrap();
        let first = fs::metadata(path.join(FILE)).unwrap();
        assert_eq!(first.mode() & 0o777, 0o644);
        folder.write(b"two").unwrap();
        assert_eq!(folder.read().unwrap(), b"two");
        assert_ne!(
            fs::metadata(path.join(FILE)).unwrap().ino(),
            first.ino(),
            "changed in place"
        );
        assert!(is_locked(&path));
        let names: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), 2, "{names:?}");
        drop(folder);
        assert!(!is_locked(&path), "it ended with its daemon");
    }

    #[test]
    fn a_lock_that_another_has_or_that_is_gone_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let other = File::create(path.join(LOCK)).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        let folder = Directory::new(&path);
        folder.write(b"one").unwrap();
        drop(other);
        assert!(is_locked(&path));
        fs::remove_file(path.join(LOCK)).unwrap();
        folder.hold().unwrap();
        assert!(is_locked(&path));
    }

    #[test]
    fn what_cannot_be_written_leaves_the_former_file_without_a_lock() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let folder = Directory::new(&path);
        folder.write(b"one").unwrap();
        // A name that cannot be written to, for root neither.
        symlink("missing/nothing", folder.temporary(FILE)).unwrap();
        let problem = folder.write(b"two").unwrap_err();
        assert!(
            problem.starts_with("write ") && problem.contains("No such file"),
            "{problem}"
        );
        assert_eq!(folder.read().unwrap(), b"one");
        assert!(!is_locked(&path));
        folder.write(b"two").unwrap();
        assert!(is_locked(&path));
    }

    #[test]
    fn switched_off_nothing_is_left_but_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let folder = Directory::new(&path.join("none"));
        folder.remove().unwrap();
        assert!(!path.join("none").exists());
        let folder = Directory::new(&path);
        folder.write(b"one").unwrap();
        folder.remove().unwrap();
        assert!(!path.join(FILE).exists() && !is_locked(&path));
    }
}
