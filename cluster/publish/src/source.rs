//! Reads the daemon's publication from its folder, again and again.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use stelia_api::publication::{FILE, LOCK, MAX_FILE_BYTES, Publication};
use tokio::sync::watch;

/// The pause between two looks, which open two files each. The object is written once in 2 s at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a publisher is given: the file's content, and whether the daemon that wrote it lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// The last content that could be used.
    pub publication: Option<Arc<Publication>>,
    /// The daemon holds its lock.
    pub daemon_lives: bool,
    /// Why the file as it is now is not used: missing, cut off, of a newer version.
    pub problem: Option<String>,
}

impl Reading {
    /// What a daemon that lives wrote.
    pub fn of(publication: Publication) -> Self {
        Self {
            publication: Some(Arc::new(publication)),
            daemon_lives: true,
            problem: None,
        }
    }
}

/// The file that was read last. The daemon never changes it in place: another one has another inode, or at least another time.
type Stamp = (u64, i64, i64, u64);

/// The daemon's folder.
pub struct Source {
    directory: PathBuf,
    stamp: Option<Stamp>,
    publication: Option<Arc<Publication>>,
    problem: Option<String>,
    sender: watch::Sender<Reading>,
}

impl Source {
    /// The folder as it is now.
    pub fn new(directory: PathBuf) -> Self {
        let mut source = Self {
            directory,
            stamp: None,
            publication: None,
            problem: None,
            sender: watch::Sender::default(),
        };
        source.look();
        source
    }

    pub fn readings(&self) -> watch::Receiver<Reading> {
        self.sender.subscribe()
    }

    /// Looks at the folder for ever.
    pub async fn follow(mut self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            self.look();
        }
    }

    /// Reads what the folder tells now. A file that is of no use takes nothing away: the last good one stands.
    fn look(&mut self) {
        let path = self.directory.join(FILE);
        let file = self.file(&path);
        if let Err(error) = file {
            self.stamp = None;
            self.problem = Some(format!("read {}: {error}", path.display()));
        }
        let lock = self.directory.join(LOCK);
        let (daemon_lives, problem) = match is_locked(&lock) {
            Ok(locked) => (locked, None),
            Err(error) => (false, Some(format!("lock {}: {error}", lock.display()))),
        };
        let reading = Reading {
            publication: self.publication.clone(),
            daemon_lives,
            problem: self.problem.clone().or(problem),
        };
        self.sender.send_if_modified(|before| {
            let changed = *before != reading;
            *before = reading;
            changed
        });
    }

    fn file(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        let now = file.metadata()?;
        let stamp = (now.ino(), now.mtime(), now.mtime_nsec(), now.size());
        if self.stamp == Some(stamp) {
            return Ok(());
        }
        let mut text = Vec::new();
        // One byte more than the limit, to detect a larger file.
        file.by_ref().take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut text)?;
        self.stamp = Some(stamp);
        match Publication::parse(&text) {
            Ok(publication) => {
                self.problem = None;
                if self.publication.as_deref() != Some(&publication) {
                    self.publication = Some(Arc::new(publication));
                }
            }
            Err(error) => self.problem = Some(format!("{}: {error}", path.display())),
        }
        Ok(())
    }
}

/// Whether somebody holds the lock exclusively. It is taken for a moment to find out, shared: several may look at once.
fn is_locked(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::AGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
