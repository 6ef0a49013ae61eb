//! inotify on kubelet's folder; while it does not exist, on the closest directory above it that does.

use std::io;
use std::path::{Path, PathBuf};

use futures_util::{FutureExt, StreamExt};
use inotify::{EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use thiserror::Error;

/// How often a directory may come or go while it is looked for, before its event is awaited.
const MAX_ATTEMPTS: usize = 16;

/// Why the folder cannot be watched.
#[derive(Debug, Error)]
#[error("watch {}: {cause}", path.display())]
pub(crate) struct WatchError {
    path: PathBuf,
    cause: io::Error,
}

/// The closest directory to the folder that exists, which is watched.
struct Closest {
    path: PathBuf,
    watched: WatchDescriptor,
    /// Why no closer one can be watched, if it is not that there is none.
    in_the_way: Option<WatchError>,
}

pub(super) struct FolderWatch {
    folder: PathBuf,
    watches: Watches,
    events: EventStream<[u8; 4096]>,
    current: Option<WatchDescriptor>,
}

impl FolderWatch {
    /// Belongs to the runtime it is called in.
    pub(super) fn new(folder: &Path) -> Result<Self, WatchError> {
        let failed = |cause| WatchError {
            path: folder.to_owned(),
            cause,
        };
        let inotify = Inotify::init().map_err(failed)?;
        let watches = inotify.watches();
        let events = inotify.into_event_stream([0; 4096]).map_err(failed)?;
        Ok(Self {
            folder: folder.to_owned(),
            watches,
            events,
            current: None,
        })
    }

    /// Watches the folder. Returns whether it exists; otherwise, and if another file is in its place, the way to it is watched.
    ///
    /// It is called again before each look, because the folder may have been made, removed or replaced: a watch is on the directory itself and
    /// not on its path. A watch of the same directory stays as it is.
    pub(super) fn renew(&mut self) -> Result<bool, WatchError> {
        for _ in 0..MAX_ATTEMPTS {
            let closest = self.closest()?;
            if let Some(before) = self.current.replace(closest.watched.clone())
                && before != closest.watched
            {
                // It may be gone with its directory.
                let _ = self.watches.remove(before);
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

    fn closest(&mut self) -> Result<Closest, WatchError> {
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let mut in_the_way = None;
        for path in self.folder.ancestors() {
            // The folder itself has to be one; above it, an administrator may have put links.
            let mask = match path == self.folder {
                true => mask | WatchMask::DONT_FOLLOW,
                false => mask,
            };
            match self.watches.add(path, mask) {
                Ok(watched) => {
                    return Ok(Closest {
                        path: path.to_owned(),
                        watched,
                        in_the_way,
                    });
                }
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => {
                    in_the_way.get_or_insert(WatchError {
                        path: path.to_owned(),
                        cause,
                    });
                }
            }
        }
        let none = || WatchError {
            path: self.folder.clone(),
            cause: io::ErrorKind::NotFound.into(),
        };
        Err(in_the_way.unwrap_or_else(none))
    }

    /// Waits until something happened. What happened is not told: events may be lost, so the caller looks, and from time to time without being told.
    /// Where the kernel gives no events any more, this never ends, rather than at once each time.
    pub(super) async fn changed(&mut self) {
        match self.events.next().await {
            Some(Ok(_)) => while let Some(Some(Ok(_))) = self.events.next().now_or_never() {},
            Some(Err(_)) | None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

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
        let mut watch = FolderWatch::new(&folder).unwrap();
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
    async fn a_file_or_a_link_in_the_folders_place_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("folder");
        fs::write(&folder, "").unwrap();
        let mut watch = FolderWatch::new(&folder).unwrap();
        let error = watch.renew().unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("watch {}: ", folder.display())),
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
