//! How entry points call the ledger's task: through a channel, as they call the engine. The engine itself only shows the ledger's summary.

use stelia_api::ledger::LedgerSummary;
use stelia_api::{Error, ErrorKind};
use stelia_kubelet::PodUid;
use tokio::sync::{mpsc, oneshot};

use super::calls::Reply;
use super::handle::Handle;

/// A call of the ledger.
pub(crate) enum LedgerCall {
    Account(AccountRequest, Reply<String>),
    /// Attribute the CPUs of this pod's VM for this many seconds.
    Attribute(PodUid, u32, Reply<String>),
    Verify(Reply<String>),
}

/// Whose account is requested, and over which period, in microseconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccountRequest {
    /// `None`: every VM's.
    pub(crate) pod: Option<PodUid>,
    pub(crate) since_us: u64,
    /// `None`: now, for which the counters are read once more.
    pub(crate) until_us: Option<u64>,
    /// Whether the caller is a pod, which reads a restricted account of its own VM.
    pub(crate) by_pod: bool,
}

impl Handle {
    /// Receive the calls of the ledger. They are refused while there is no receiver.
    pub(crate) fn ledger_calls(&self) -> mpsc::UnboundedReceiver<LedgerCall> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.ledger.send_replace(Some(sender));
        receiver
    }

    async fn ask_ledger(&self, call: impl FnOnce(Reply<String>) -> LedgerCall) -> Result<String, Error> {
        let (reply, answer) = oneshot::channel();
        let nobody = || {
            ErrorKind::Busy.because(
                "the ledger is off: set ledger = true in /etc/stelia/steliad.toml, then systemctl reload steliad",
            )
        };
        let sent = self.ledger.borrow().as_ref().map(|ledger| ledger.send(call(reply)));
        sent.and_then(Result::ok).ok_or_else(nobody)?;
        answer.await.map_err(|_| nobody())?
    }

    /// The account of one VM, or of all in an array, as JSON. On behalf of a pod it is restricted to what that may read.
    pub(crate) async fn account(
        &self,
        pod: Option<PodUid>,
        since_us: u64,
        until_us: Option<u64>,
    ) -> Result<String, Error> {
        let request = AccountRequest {
            pod,
            since_us,
            until_us,
            by_pod: self.asker.is_some(),
        };
        self.ask_ledger(|reply| LedgerCall::Account(request, reply)).await
    }

    /// Who else runs on a VM's CPUs, as JSON; answers when the time is over.
    pub(crate) async fn attribute(&self, pod: PodUid, seconds: u32) -> Result<String, Error> {
        self.ask_ledger(|reply| LedgerCall::Attribute(pod, seconds, reply))
            .await
    }

    /// Whether the ledger's files are as they were written, as JSON.
    pub(crate) async fn verify_ledger(&self) -> Result<String, Error> {
        self.ask_ledger(LedgerCall::Verify).await
    }

    /// Show this summary of the ledger.
    pub(crate) fn show_ledger(&self, ledger: LedgerSummary) {
        self.show(|state| state.view_writer.show_ledger(ledger));
    }
}
