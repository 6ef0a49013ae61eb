//! `reload`: makes the daemon read its configuration again.

use serde::Serialize;

use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{Render, TextStyle};

/// The daemon answers a reload with nothing.
#[derive(Serialize)]
pub(crate) struct Reloaded {}

impl Render for Reloaded {
    fn text(&self, _: TextStyle) -> String {
        String::new()
    }
}

/// # Errors
/// The daemon refuses, or its configuration is invalid.
pub(crate) async fn gather(client: &Client) -> Result<Reloaded, Failure> {
    client.reload().await?;
    Ok(Reloaded {})
}
