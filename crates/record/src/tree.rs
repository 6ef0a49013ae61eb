//! Where the cgroups of an instance are: in a scope of its own, or in the container's own cgroup.

use stelia_node::cgroup::CgroupPath;
use stelia_node::containers::whole;
use stelia_settings::TreeHome;

use crate::Record;

/// Where an instance's cgroups are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    outer: CgroupPath,
    scope: CgroupPath,
    inner: CgroupPath,
    float: CgroupPath,
    vcpu: CgroupPath,
}

impl Tree {
    /// Where the cgroups of an instance with this record are.
    pub fn of(record: &Record) -> Self {
        match record.home {
            TreeHome::Slice => Self::in_scope(CgroupPath::slice().child(&record.pod.scope())),
            TreeHome::InPlace => Self::in_place(record.origin.clone()),
        }
    }

    /// Where they are, from the cgroup on which the record is.
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
            float: inner.child("float"),
            vcpu: inner.child("vcpu"),
            inner,
            outer: scope.clone(),
            scope,
        }
    }

    /// In the cgroup that the container's processes are in: `float/` and `vcpu/`.
    pub fn in_place(origin: CgroupPath) -> Self {
        Self {
            float: origin.child("float"),
            vcpu: origin.child("vcpu"),
            outer: whole(&origin),
            inner: origin.clone(),
            scope: origin,
        }
    }

    /// The outermost cgroup that is the instance's alone: its scope, or in place the container's.
    pub fn outer(&self) -> &CgroupPath {
        &self.outer
    }

    /// The cgroup on which the record is.
    pub fn scope(&self) -> &CgroupPath {
        &self.scope
    }

    /// The root of the threaded domain.
    pub fn inner(&self) -> &CgroupPath {
        &self.inner
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
