//! What is done for the CPUs of VMs besides keeping tasks off them.

use stelia_text::named;

/// The settings of that.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct QuietSettings {
    pub irq_steering: IrqSteering,
    pub vfio_irqs: VfioIrqs,
}

/// Where device interrupts go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IrqSteering {
    /// Away from the CPUs of VMs.
    #[default]
    Shared,
    /// Where they go already: nothing is written.
    Off,
}

named!(IrqSteering {
    Shared = "shared",
    Off = "off"
});

/// Where the interrupts of a VM's own VFIO devices go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VfioIrqs {
    /// Where those of every other device go.
    #[default]
    Float,
    /// To the VM's own CPUs.
    Own,
}

named!(VfioIrqs {
    Float = "float",
    Own = "own"
});
