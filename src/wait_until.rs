//! The wait of a task for its next step.

use std::time::Instant;

/// Waits until `next`; for ever if it is `None`.
pub(crate) async fn wait_until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}
