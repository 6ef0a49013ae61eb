//! Where the cgroups of an instance are: in a scope of its own, or in the container's own cgroup.

use stelia_node::cgroup::CgroupPath;
use stelia_node::containers::container_scope;
use stelia_settings::TreeHome;

use crate::{Record, RecordPlace};

/// The cgroups of an instance in a scope: for everything except vCPU threads, and for these.
const IN_SCOPE: [&str; 2] = ["float", "vcpu"];

/// The same in place: for everything except vCPU threads, and for these.
///
/// The first name is KubeVirt's, of its cgroup for the same threads (`isolateEmulatorThread`). virt-handler looks for a container's
/// cgroup by its processes, and takes this one name for a part of it (`managerPath` in its `pkg/virt-handler/cgroup`).
pub const IN_PLACE: [&str; 2] = ["housekeeping", "vcpu"];

/// Where an instance's cgroups are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    outer: CgroupPath,
    scope: CgroupPath,
    inner: CgroupPath,
    float: CgroupPath,
    vcpu: CgroupPath,
    place: RecordPlace,
}

impl Tree {
    /// Where the cgroups of an instance with this record are.
    pub fn of(record: &Record) -> Self {
        match record.home {
            TreeHome::Slice => Self::in_scope(CgroupPath::slice().child(&record.pod.scope())),
            TreeHome::InPlace => Self::in_place(record.origin.clone()),
        }
    }

    /// Where they are, from the scope, or in place from the cgroup that the container's processes are in.
    pub fn at(scope: CgroupPath) -> Self {
        if scope.is_within(&CgroupPath::slice()) {
            Self::in_scope(scope)
        } else {
            Self::in_place(scope)
        }
    }

    /// In a scope of its own: `instance/` and in that `float/` and `vcpu/`.
    pub fn in_scope(scope: CgroupPath) -> Self {
        let inner = scope.child("instance");
        Self {
            float: inner.child(IN_SCOPE[0]),
            vcpu: inner.child(IN_SCOPE[1]),
            inner,
            outer: scope.clone(),
            place: RecordPlace::on_scope(scope.clone()),
            scope,
        }
    }

    /// In the cgroup that the container's processes are in: `housekeeping/` and `vcpu/`.
    pub fn in_place(origin: CgroupPath) -> Self {
        let outer = container_scope(&origin);
        Self {
            float: origin.child(IN_PLACE[0]),
            vcpu: origin.child(IN_PLACE[1]),
            place: RecordPlace::on_pod(&outer),
            outer,
            inner: origin.clone(),
            scope: origin,
        }
    }

    /// The outermost cgroup that is the instance's alone: its scope, or in place the container's.
    pub fn outer(&self) -> &CgroupPath {
        &self.outer
    }

    /// Where the record is.
    pub fn place(&self) -> &RecordPlace {
        &self.place
    }

    /// The scope; in place the cgroup that the container's processes are in.
    pub fn scope(&self) -> &CgroupPath {
        &self.scope
    }

    /// The root of the threaded domain.
    pub fn inner(&self) -> &CgroupPath {
        &self.inner
    }

    /// Whether this is an instance's cgroup for everything except vCPU threads, by its name.
    pub fn is_float(cgroup: &CgroupPath) -> bool {
        [IN_SCOPE[0], IN_PLACE[0]].contains(&cgroup.name())
    }

    /// For everything except vCPU threads.
    pub fn float(&self) -> &CgroupPath {
        &self.float
    }

    /// For the vCPU threads.
    pub fn vcpu(&self) -> &CgroupPath {
        &self.vcpu
    }

    /// The cgroup whose freezing keeps the instance's processes from forking while they are moved out. The container's own
    /// cgroup is the runtime's to freeze.
    pub fn freezer(&self) -> &CgroupPath {
        if self.scope == self.inner {
            &self.float
        } else {
            &self.inner
        }
    }
}
