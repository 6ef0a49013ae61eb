//! inotify: kubelet's directory, stelia.slice, and every scope's `cgroup.events`. All an event does is wake the engine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use inotify::{Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::mpsc;

use crate::kubelet::checkpoint::CPU_MANAGER_STATE;

/// The watches in force.
pub struct Watcher {
    watches: Watches,
    /// By path and inode: a scope's file that was removed and made again has the same path and another inode.
    held: BTreeMap<(PathBuf, u64), WatchDescriptor>,
}

impl Watcher {
    /// Begin; `wake` gets a unit for every event that matters, and drops what a full channel already says.
    ///
    /// # Errors
    /// The kernel gives no inotify instance.
    pub fn start(kubelet_root: PathBuf, wake: mpsc::Sender<()>) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mut watcher = Self {
            watches: inotify.watches(),
            held: BTreeMap::new(),
        };
        watcher.keep(std::slice::from_ref(&kubelet_root));
        let kubelet = watcher.held.values().next().cloned();
        let mut events = inotify.into_event_stream(vec![0; 4096])?;
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                // kubelet's directory sees much that is not ours: only the file's own name counts there.
                let other = event.is_ok_and(|event| {
                    Some(&event.wd) == kubelet.as_ref()
                        && event.name.is_some_and(|name| name.as_os_str() != CPU_MANAGER_STATE)
                });
                if !other {
                    let _ = wake.try_send(());
                }
            }
        });
        Ok(watcher)
    }

    /// Watch exactly these paths: directories for what is made, renamed and removed in them, files for changes. A path
    /// that cannot be watched now is tried again at the next call.
    pub fn keep(&mut self, paths: &[PathBuf]) {
        let wanted: Vec<(PathBuf, u64)> = paths
            .iter()
            .filter_map(|path| Some((path.clone(), fs::metadata(path).ok()?.ino())))
            .collect();
        let gone: Vec<(PathBuf, u64)> = self
            .held
            .keys()
            .filter(|held| !wanted.contains(held))
            .cloned()
            .collect();
        for key in gone {
            if let Some(descriptor) = self.held.remove(&key) {
                // The kernel drops the watch of a removed file by itself.
                let _ = self.watches.remove(descriptor);
            }
        }
        for key in wanted {
            if !self.held.contains_key(&key)
                && let Ok(descriptor) = self.watches.add(&key.0, mask(&key.0))
            {
                self.held.insert(key, descriptor);
            }
        }
    }
}

fn mask(path: &Path) -> WatchMask {
    if path.is_dir() {
        // A cgroup's files are modified; the kernel tells of a partition it made invalid in the same way.
        WatchMask::MOVED_TO
            | WatchMask::CLOSE_WRITE
            | WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
    } else {
        WatchMask::MODIFY | WatchMask::DELETE_SELF
    }
}
