//! `release`: a VM gives up its CPUs and keeps running.

use serde::Serialize;

use crate::shared::daemon::{Client, Failure, Mode, Pod, options, restart};
use crate::shared::output::{Render, TextStyle, paragraph, printable};

/// The VM that was released, or would be. As JSON the pod alone.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Released {
    pod: Pod,
    /// What happened or would, and what isolates the VM again.
    #[serde(skip)]
    text: String,
}

impl Render for Released {
    fn text(&self, style: TextStyle) -> String {
        paragraph(&printable(&self.text), style)
    }

    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }
}

/// Releases the VM, or with a dry run only says what would happen.
///
/// # Errors
/// No such VM, or the daemon refuses.
pub(crate) async fn release(client: &Client, vm: &str, dry_run: bool) -> Result<Released, Failure> {
    let found = client.find(vm).await?;
    let (released, keeps) = if dry_run {
        ("would release", "would keep")
    } else {
        let deregister = client.manager().deregister(&found.pod.pod_uid, options(Mode::Change));
        client.answer_while_alive(deregister).await?;
        ("released", "keeps")
    };
    let cpus = match &found.instance.exclusive {
        none if none.is_empty() => String::new(),
        cpus => format!(" CPUs {cpus}"),
    };
    let (pod, undo) = (found.pod.in_full(), restart(&found.described));
    Ok(Released {
        text: format!("{pod}: {released}{cpus}; the VM {keeps} running, unisolated. Undo: {undo}"),
        pod: found.pod,
    })
}
