//! One connection to the daemon.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::{Connection, MessageStream};

/// A registration waits up to 5 s for kubelet and moves every process of the container, on a node that may be busy.
const METHOD_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: Connection,
    signals: watch::Receiver<()>,
    reader: AbortHandle,
}

impl Link {
    pub(crate) async fn connect(socket: &Path) -> Result<Link, String> {
        let connection = connect(socket).await?;
        let (sender, signals) = watch::channel(());
        let stream = MessageStream::from(&connection);
        let reader = tokio::spawn(read_signals(stream, sender));
        Ok(Link {
            connection,
            signals,
            reader: reader.abort_handle(),
        })
    }

    /// Waits for a signal; `false` when the connection broke.
    pub(crate) async fn signal(&mut self) -> bool {
        self.signals.changed().await.is_ok()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The task holds the connection open.
        self.reader.abort();
    }
}

/// Reads all messages, because an unread stream blocks the connection, and notifies of signals.
async fn read_signals(mut stream: MessageStream, sender: watch::Sender<()>) {
    while let Some(Ok(message)) = stream.next().await {
        if message.message_type() == Type::Signal {
            sender.send_replace(());
        }
    }
}

async fn connect(socket: &Path) -> Result<Connection, String> {
    let stream = UnixStream::connect(socket)
        .await
        .and_then(UnixStream::into_std)
        .map_err(|e| e.to_string())?;
    let mut builder = Builder::unix_stream(stream).p2p().method_timeout(METHOD_TIMEOUT);
    // EXTERNAL compares the uid in the client's message with the one that the kernel shows the daemon. In a user namespace they differ, so
    // the outer one is sent.
    if let Some(uid) = outer_uid_of_self() {
        builder = builder.user_id(uid);
    }
    builder.build().await.map_err(|e| e.to_string())
}

fn outer_uid_of_self() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    outer_uid(&map, rustix::process::geteuid().as_raw())
}

/// The uid outside the user namespace for `inner`, from the text of `/proc/self/uid_map` (user_namespaces(7): lines of
/// first inner id, first outer id, count). `None` when it is not mapped.
fn outer_uid(map: &str, inner: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(|n| n.parse::<u32>().ok());
        let (first, outer, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = inner.checked_sub(first)?;
        outer.checked_add(offset).filter(|_| offset < count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("         0          0 4294967295\n", 107, Some(107))]
    #[case("         0     165536      65536\n", 0, Some(165_536))]
    #[case("         0     165536      65536\n", 107, Some(165_643))]
    #[case("0 1000 1\n1 100000 65536\n", 5, Some(100_004))]
    #[case("0 165536 65536\n", 65_536, None)]
    #[case("", 0, None)]
    #[case("nonsense here too", 0, None)]
    #[case("0 4294967295 2", 1, None)]
    fn outer_uid_is_found_by_range(#[case] map: &str, #[case] inner: u32, #[case] outer: Option<u32>) {
        assert_eq!(outer_uid(map, inner), outer);
    }
}
