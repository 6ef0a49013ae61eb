//! `release`: a VM gives up its CPUs and keeps running.

use serde::Serialize;

use crate::shared::daemon::{Client, Failure, Mode, Pod, options, own_cpus, recreate};
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
}

/// Releases the VM, or with a dry run only says what would happen.
pub(crate) async fn release(client: &Client, vm: &str, mode: Mode) -> Result<Released, Failure> {
    let found = client.find(vm).await?;
    let (released, keeps) = match mode {
        Mode::DryRun => ("would release", "would keep"),
        Mode::Change => {
            let deregister = client.manager().deregister(&found.pod.pod_uid, options(mode));
            client.answer_while_alive(deregister).await?;
            ("released", "keeps")
        }
    };
    let cpus = match own_cpus(&found.instance) {
        none if none.is_empty() => String::new(),
        cpus => format!(" CPUs {cpus}"),
    };
    let pod = found.pod.in_full();
    let undo = recreate(&found.described, &[(found.pod.clone(), 0)]);
    Ok(Released {
        text: format!("{pod}: {released}{cpus}; the VM {keeps} running, unisolated. Undo: {undo}"),
        pod: found.pod,
    })
}
