//! `deregister`: releases an instance's CPUs.

use serde::Serialize;

use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Render, TextStyle};

/// Text says nothing of a success.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Deregistered(Pod);

impl Render for Deregistered {
    fn text(&self, _: TextStyle) -> String {
        String::new()
    }

    fn names(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
}

/// # Errors
/// No such instance, or the daemon refuses.
pub(crate) async fn gather(client: &Client, vm: &str) -> Result<Deregistered, Failure> {
    Ok(Deregistered(client.deregister(vm).await?))
}
