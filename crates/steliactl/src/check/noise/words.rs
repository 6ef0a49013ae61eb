//! Why something remains and what to do about it, in words.

use stelia_api::quiet::{Irqbalance, RemainingCause};

/// Why a device interrupt remains.
pub(super) const fn why(remains: RemainingCause) -> &'static str {
    match remains {
        RemainingCause::Managed => "the kernel places it itself (managed)",
        RemainingCause::NoVector => "no other CPU has an interrupt vector left",
        RemainingCause::Refused => "its mask cannot be written",
        RemainingCause::StillFires => "its mask is right, but it still fires there",
        RemainingCause::Overwritten => "another program writes its mask again and again",
    }
}

/// What helps; nothing has to where it is not left. `booted`: the kernel was booted with `isolcpus=managed_irq` for its CPUs.
pub(super) const fn cure(remains: RemainingCause, left: bool, booted: bool) -> &'static str {
    match remains {
        _ if !left => "nothing: it does not fire there",
        RemainingCause::Managed if booted => {
            "fewer queues of the device: isolcpus=managed_irq is set, and its queue has no other CPUs"
        }
        RemainingCause::Managed => {
            "boot with isolcpus=managed_irq: steliactl doctor has the CPUs, and what it would gain"
        }
        RemainingCause::NoVector => "more shared CPUs, or fewer queues of the devices (ethtool -L)",
        RemainingCause::Refused => "see the kernel's message beside it, and /usr/share/doc/steliad/quiet-cpus.md",
        RemainingCause::StillFires => {
            "its interrupt controller does not follow: look for the driver's own queue affinity"
        }
        RemainingCause::Overwritten => "find the program (irqbalance, tuned, a vendor's affinity script) and stop it",
    }
}

/// Why a kernel thread remains, from what the kernel said when its CPUs were to be set.
pub(super) fn thread_why(error: &str) -> String {
    match error {
        "" => "its CPUs cannot be set".to_owned(),
        // The kernel's answer for threads that it binds itself.
        error if error.contains("Invalid argument") => format!("the kernel lets nobody choose its CPUs: {error}"),
        error => format!("its CPUs cannot be set: {error}"),
    }
}

pub(super) const fn thread_cure(left: bool) -> &'static str {
    if left {
        "look for a setting of its driver's or subsystem's; /usr/share/doc/steliad/quiet-cpus.md has more"
    } else {
        "nothing: it runs only when memory is short"
    }
}

/// What to do about a problem of `steliad-quiet`, from its text; `None` where the text says it.
pub(super) fn problem_cure(text: &str) -> Option<&'static str> {
    let is_refused = text.contains("Permission denied");
    is_refused.then_some("steliad-quiet has to run as root, as its unit does: systemctl cat steliad-quiet")
}

pub(super) const fn irqbalance(state: Irqbalance) -> &'static str {
    match state {
        Irqbalance::Absent => "irqbalance does not run, or no VM has CPUs",
        Irqbalance::Informed => "irqbalance has the list of the VMs' CPUs",
        Irqbalance::NotInformed => "irqbalance runs, and the list of the VMs' CPUs could not be sent to it",
    }
}
