//! inotify on kubelet's folder; while it does not exist, on the closest directory above it that does.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use inotify::{EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use crate::file_error::FileError;

/// The longest wait for an event: events may be lost.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// How often the folder is looked at where it cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How often a directory may come or go while it is looked for, before its event is awaited.
const MAX_ATTEMPTS: usize = 16;

/// The closest directory to the folder that exists, which is watched.
struct Closest {
    path: PathBuf,
    watched: WatchDescriptor,
    /// Why no closer one can be watched, if it is not that there is none.
    in_the_way: Option<FileError>,
}

/// What the kernel gives of inotify.
struct Events {
    watches: Watches,
    stream: EventStream<[u8; 4096]>,
}

impl Events {
    fn start() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let stream = inotify.into_event_stream([0; 4096])?;
        Ok(Self { watches, stream })
    }
}

pub(super) struct FolderWatch {
    folder: PathBuf,
    /// `None`: root has no inotify instance left on this node, or the kernel gives no more events. It is tried again before each look.
    events: Option<Events>,
    start: fn() -> io::Result<Events>,
    current: Option<WatchDescriptor>,
    /// Why the folder is looked at every [`POLL_INTERVAL`] in place of being watched.
    problem: Option<String>,
}

impl FolderWatch {
    /// Belongs to the runtime it is called in.
    pub(super) fn new(folder: &Path) -> Self {
        let mut watch = Self {
            folder: folder.to_owned(),
            events: None,
            start: Events::start,
            current: None,
            problem: None,
        };
        watch.start();
        watch
    }

    fn start(&mut self) {
        match (self.start)() {
            Ok(events) => (self.events, self.current) = (Some(events), None),
            Err(cause) => self.poll(&format!("inotify: {cause}")),
        }
    }

    /// How long [`Self::changed`] may be awaited before the folder is looked at.
    pub(super) fn max_wait(&self) -> Duration {
        match self.problem {
            None => MAX_WAIT,
            Some(_) => POLL_INTERVAL,
        }
    }

    fn poll(&mut self, problem: &str) {
        if self.problem.as_deref() != Some(problem) {
            tracing::warn!("{problem}: the folder is looked at every {} s", POLL_INTERVAL.as_secs());
            self.problem = Some(problem.to_owned());
        }
    }

    fn is_folder(&self) -> bool {
        self.folder.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
    }

    /// Watches the folder. Returns whether it exists; otherwise, and if another file is in its place, the way to it is watched.
    ///
    /// It is called again before each look, because the folder may have been made, removed or replaced: a watch is on the directory itself and
    /// not on its path. A watch of the same directory stays as it is.
    ///
    /// Where the kernel allows no further watch, the folder counts without one.
    ///
    /// # Errors
    ///
    /// Another file is in the folder's place, or a directory on the way to it cannot be watched.
    pub(super) fn renew(&mut self) -> Result<bool, FileError> {
        if self.events.is_none() {
            self.start();
        }
        if self.events.is_none() {
            return Ok(self.is_folder());
        }
        match self.renew_watch() {
            Ok(exists) => {
                self.problem = None;
                Ok(exists)
            }
            Err(error) if self.is_folder() => {
                self.poll(&error.to_string());
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    fn renew_watch(&mut self) -> Result<bool, FileError> {
        for _ in 0..MAX_ATTEMPTS {
            let closest = self.closest()?;
            if let Some(before) = self.current.replace(closest.watched.clone())
                && before != closest.watched
            {
                // It may be gone with its directory.
                let _ = self.events.as_mut().map(|events| events.watches.remove(before));
            }
            if closest.path == self.folder {
                return Ok(true);
            }
            if let Some(error) = closest.in_the_way {
                return Err(error);
            }
            // Made between the two calls: no event tells of it.
            let below = self
                .folder
                .ancestors()
                .find(|below| below.parent() == Some(&closest.path));
            if below.is_none_or(|below| below.symlink_metadata().is_err()) {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn closest(&mut self) -> Result<Closest, FileError> {
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let mut in_the_way = None;
        let Some(events) = &mut self.events else {
            return Err(FileError::of("watch", &self.folder)(io::ErrorKind::Unsupported.into()));
        };
        for path in self.folder.ancestors() {
            // The folder itself has to be one; above it, an administrator may have put links.
            let mask = if path == self.folder {
                mask | WatchMask::DONT_FOLLOW
            } else {
                mask
            };
            match events.watches.add(path, mask) {
                Ok(watched) => {
                    return Ok(Closest {
                        path: path.to_owned(),
                        watched,
                        in_the_way,
                    });
                }
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => {
                    in_the_way.get_or_insert(FileError::of("watch", path)(cause));
                }
            }
        }
        let none = || FileError::of("watch", &self.folder)(io::ErrorKind::NotFound.into());
        Err(in_the_way.unwrap_or_else(none))
    }

    /// Waits until something happened. What happened is not told: events may be lost, so the caller looks, and from time to time without being told.
    /// Where the kernel gives no events, this never ends, rather than at once each time.
    pub(super) async fn changed(&mut self) {
        let Some(events) = &mut self.events else {
            return std::future::pending().await;
        };
        match events.stream.next().await {
            Some(Ok(_)) => while let Some(Some(Ok(_))) = events.stream.next().now_or_never() {},
            Some(Err(_)) | None => {
                self.events = None;
                self.poll("inotify gives no more events");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn changes(watch: &mut FolderWatch) -> bool {
        tokio::time::timeout(Duration::from_millis(300), watch.changed())
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn a_folder_is_watched_from_before_it_exists_until_it_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("lib/kubelet/device-plugins");
        let mut watch = FolderWatch::new(&folder);
        assert!(!watch.renew().unwrap());
        assert!(!changes(&mut watch).await);
        fs::create_dir_all(&folder).unwrap();
        assert!(changes(&mut watch).await);
        assert!(watch.renew().unwrap());
        assert!(watch.renew().unwrap());
        fs::write(folder.join("a"), "").unwrap();
        assert!(changes(&mut watch).await);
        fs::remove_file(folder.join("a")).unwrap();
        assert!(changes(&mut watch).await);
        fs::remove_dir_all(root.path().join("lib")).unwrap();
        assert!(changes(&mut watch).await);
        assert!(!watch.renew().unwrap());
        fs::create_dir_all(&folder).unwrap();
        while changes(&mut watch).await {}
        assert!(watch.renew().unwrap());
        fs::rename(&folder, root.path().join("other")).unwrap();
        assert!(changes(&mut watch).await);
        assert!(!watch.renew().unwrap());
    }

    #[tokio::test]
    async fn without_inotify_the_folder_is_looked_at_until_it_can_be_watched() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("folder");
        let mut watch = FolderWatch::new(&folder);
        assert_eq!(watch.max_wait(), MAX_WAIT);
        watch.events = None;
        watch.start = || Err(io::Error::from_raw_os_error(24));
        watch.start();
        assert_eq!(watch.max_wait(), POLL_INTERVAL);
        assert!(!watch.renew().unwrap());
        fs::create_dir(&folder).unwrap();
        assert!(watch.renew().unwrap() && !changes(&mut watch).await);
        watch.start = Events::start;
        assert!(watch.renew().unwrap());
        assert_eq!(watch.max_wait(), MAX_WAIT);
        fs::write(folder.join("a"), "").unwrap();
        assert!(changes(&mut watch).await);
    }

    #[tokio::test]
    async fn a_file_or_a_link_in_the_folders_place_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("folder");
        fs::write(&folder, "").unwrap();
        let mut watch = FolderWatch::new(&folder);
        let error = watch.renew().unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("watch {}", folder.display())),
            "{error}"
        );
        fs::remove_file(&folder).unwrap();
        assert!(changes(&mut watch).await);
        std::os::unix::fs::symlink(root.path(), &folder).unwrap();
        assert!(watch.renew().is_err());
        fs::remove_file(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        assert!(changes(&mut watch).await);
        assert!(watch.renew().unwrap());
    }
}
