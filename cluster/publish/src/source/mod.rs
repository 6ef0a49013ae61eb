//! Reads the daemon's publication from its folder: followed by inotify, and read periodically too.

mod reader;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::reading::Reading;
use reader::PublicationReader;

/// Without an event the folder is read again after this: inotify does not report a daemon that took its lock and wrote nothing.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// A missing folder, or one that cannot be watched, is tried again after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The kernel tells of the lock's last close just before it releases the lock (`__fput`): a look at once may still find it held.
const AFTER_EVENT: Duration = Duration::from_millis(50);
/// For a few events with names.
const BUFFER: usize = 1024;

/// The daemon's folder.
pub struct Source {
    reader: PublicationReader,
    sender: watch::Sender<Reading>,
}

impl Source {
    /// The folder as it is now.
    pub fn new(directory: PathBuf) -> Self {
        let mut reader = PublicationReader::new(directory);
        let first = reader.now();
        Self {
            reader,
            sender: watch::Sender::new(first),
        }
    }

    pub fn readings(&self) -> watch::Receiver<Reading> {
        self.sender.subscribe()
    }

    /// Follows the folder for ever.
    pub async fn follow(mut self) {
        let mut said = false;
        loop {
            // Watched before it is read: a change between the two is an event.
            let watched = watch(self.reader.directory());
            self.reader();
            match watched {
                Ok(events) => {
                    said = false;
                    self.until_replaced(events).await;
                }
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!("watch {}: {error}", self.reader.directory().display());
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    fn reader(&mut self) {
        let reading = self.reader.now();
        self.sender.send_if_modified(|before| {
            let changed = *before != reading;
            *before = reading;
            changed
        });
    }

    /// Ends when the folder is another one than what is watched.
    async fn until_replaced(&mut self, mut events: EventStream<[u8; BUFFER]>) {
        let mut next = Instant::now() + POLL_INTERVAL;
        loop {
            let event = tokio::select! {
                event = events.next() => Some(event),
                () = tokio::time::sleep_until(next) => None,
            };
            next = Instant::now() + POLL_INTERVAL;
            match event {
                None => {}
                Some(Some(Ok(event))) => {
                    let replaced = EventMask::IGNORED | EventMask::MOVE_SELF | EventMask::DELETE_SELF;
                    if event.mask.intersects(replaced) {
                        return;
                    }
                    next = Instant::now() + AFTER_EVENT;
                }
                Some(None | Some(Err(_))) => return,
            }
            self.reader();
        }
    }
}

fn watch(directory: &Path) -> std::io::Result<EventStream<[u8; BUFFER]>> {
    let inotify = Inotify::init()?;
    let changes = WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE | WatchMask::CREATE | WatchMask::DELETE;
    let replaced = WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR;
    inotify.watches().add(directory, changes | replaced)?;
    inotify.into_event_stream([0; BUFFER])
}
