//! Whose account it is: a VM's, or that of a container whose tasks all have its CPUs.

use stelia_ledger::account::Account;
use stelia_ledger::entry::Closed;

use super::words;

/// "VM" or "container".
pub(super) fn kind(account: &Account) -> &'static str {
    if account.is_container { "container" } else { "VM" }
}

/// The text about a VM as one about a container, which has no virtual CPUs.
pub(super) fn of_container(text: &str) -> String {
    let text = text.replace("the VM's virtual CPUs", "the container's tasks");
    let text = text.replace("the virtual CPUs", "the container's tasks");
    let text = text.replace("the virtual CPU moved to another CPU", "the container's CPUs changed");
    let text = text.replace(", or this virtual CPU,", "");
    text.replace("VM", "container")
}

/// Why a container's time is a gap.
pub(super) fn why_of_container(why: Closed) -> String {
    of_container(words::why(why))
}
