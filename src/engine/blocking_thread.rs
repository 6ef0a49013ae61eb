//! Work of a registration that may block, on a thread of its own. The runtime has few threads for such work, and orders to
//! steliad-quiet, accounts and looks at containers wait for each other there.

use std::io;

use tokio::sync::oneshot;

/// Do this on a thread of this name that ends afterwards. A pod has one registration at a time, so there are no more threads than
/// pods that register.
///
/// # Errors
/// The thread cannot be started, or the work panicked.
pub(super) async fn run<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (sender, done) = oneshot::channel();
    let work = move || drop(sender.send(work()));
    std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    let panicked = |_| io::Error::other(format!("the thread {name:?} ended without an answer"));
    done.await.map_err(panicked)
}
