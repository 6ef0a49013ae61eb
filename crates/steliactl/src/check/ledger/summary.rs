//! The ledger in a report on the node: whether the ring is what was written, and what the last 24 hours had.

use std::path::Path;

use serde::Serialize;
use stelia_ledger::day::DAY_US;

use super::proof::{self, Proof};
use super::query::Source;
use super::{VmAccount, text};
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{Render, TextStyle, now};

/// The ring, below the root directory (systemd's `StateDirectory=` of the daemon).
const RING: &str = "var/lib/stelia/ledger";

/// The check of the ring, and the accounts of the last 24 hours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    proof: Proof,
    /// Empty if a copied ring has faults.
    vms: Vec<VmAccount>,
}

/// Asks the daemon; without one the ring below `root` is read, which only root may do.
///
/// # Errors
/// The daemon keeps no ledger or does not answer, or the ring cannot be read.
pub(crate) async fn summary(client: Option<&Client>, root: &Path) -> Result<Summary, Failure> {
    let directory = root.join(RING);
    let source = client.map_or(Source::Copy(&directory), |client| Source::Daemon(client.clone()));
    let verdict = source.verdict().await?;
    let is_readable = client.is_some() || proof::is_good(&verdict);
    let vms = if is_readable {
        source.all(now().saturating_sub(DAY_US), 0).await?
    } else {
        Vec::new()
    };
    let proof = Proof::of(verdict, client.is_none(), true);
    Ok(Summary { proof, vms })
}

impl Render for Summary {
    fn text(&self, style: TextStyle) -> String {
        let accounts = if self.vms.is_empty() {
            String::new()
        } else {
            format!("\nThe last 24 hours:\n{}", text::all(&self.vms, style))
        };
        self.proof.text(style) + &accounts
    }
}
