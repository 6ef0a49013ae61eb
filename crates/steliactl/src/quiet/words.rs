//! Why something remains and what to do about it, in words.

use stelia_api::quiet::{Irqbalance, Remains};

/// Why a device interrupt remains.
pub(super) const fn why(remains: Remains) -> &'static str {
    match remains {
        Remains::Managed => "the kernel places it itself (managed)",
        Remains::NoVector => "no other CPU has an interrupt vector left",
        Remains::Refused => "its mask cannot be written",
        Remains::StillFires => "its mask is right, and it fires there nevertheless",
        Remains::Overwritten => "another program writes its mask again and again",
    }
}

/// What helps.
pub(super) const fn cure(remains: Remains) -> &'static str {
    match remains {
        Remains::Managed => "boot with isolcpus=managed_irq: steliactl doctor has the CPUs, and what it would gain",
        Remains::NoVector => "more shared CPUs, or fewer queues of the devices (ethtool -L)",
        Remains::Refused => "what the kernel said is beside it; docs/quiet-cpus.md",
        Remains::StillFires => "its interrupt controller does not follow: look for the driver's own queue affinity",
        Remains::Overwritten => "find the program (irqbalance, tuned, a vendor's affinity script) and stop it",
    }
}

pub(super) const fn irqbalance(state: Irqbalance) -> &'static str {
    match state {
        Irqbalance::Absent => "irqbalance does not run, or has nothing to be told",
        Irqbalance::Told => "irqbalance was told",
        Irqbalance::NotTold => "irqbalance runs and could not be told",
    }
}
