//! Where an instance lives: which cgroups are its, and which of its tasks have the exclusive CPUs.

use stelia_settings::{Isolation, TreeHome};

/// Where an instance lives. What follows from it is in the folder `home/` of the crate `stelia-decide`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Home {
    /// In a scope of its own in stelia.slice, to which the container's processes are moved. The vCPU threads alone have the CPUs.
    Scope,
    /// In two cgroups below the container's own: no process leaves its container. The vCPU threads alone have the CPUs.
    InPlace,
    /// The container's own cgroup is the partition: all of its tasks share the CPUs, and none of them is moved.
    Container,
}

impl Home {
    /// The attributes `tree` and `isolation` of a record; `None` where they contradict each other.
    pub fn parse(tree: TreeHome, isolation: Isolation) -> Option<Self> {
        match (tree, isolation) {
            (TreeHome::Slice, Isolation::Vcpus) => Some(Self::Scope),
            (TreeHome::InPlace, Isolation::Vcpus) => Some(Self::InPlace),
            (TreeHome::InPlace, Isolation::Container) => Some(Self::Container),
            (TreeHome::Slice, Isolation::Container) => None,
        }
    }

    /// The attribute `tree`, also of the setting.
    pub fn tree(self) -> TreeHome {
        match self {
            Self::Scope => TreeHome::Slice,
            Self::InPlace | Self::Container => TreeHome::InPlace,
        }
    }

    /// The attribute `isolation`, also of the setting and of the D-Bus property.
    pub fn isolation(self) -> Isolation {
        match self {
            Self::Scope | Self::InPlace => Isolation::Vcpus,
            Self::Container => Isolation::Container,
        }
    }
}
