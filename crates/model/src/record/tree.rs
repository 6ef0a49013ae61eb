//! Where the cgroups of an instance are: in a scope of its own, or in the container's own cgroup.

use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups};
use stelia_kernel::containers::container_scope;
use stelia_settings::Isolation;

use crate::record::{Home, Record, RecordPlace};

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
            Home::Scope => Self::in_scope(CgroupPath::slice().child(&record.pod.scope())),
            Home::InPlace => Self::in_place(record.origin.clone()),
            Home::Container => Self::of_container(record.origin.clone()),
        }
    }

    /// Where they are, from the scope, or in place from the cgroup that the container's processes are in.
    pub fn at(scope: CgroupPath, isolation: Isolation) -> Self {
        if scope.is_within(&CgroupPath::slice()) {
            Self::in_scope(scope)
        } else if isolation == Isolation::Container {
            Self::of_container(scope)
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

    /// The container's cgroup is the partition: the scope, also if the runtime put the processes below it.
    pub fn of_container(origin: CgroupPath) -> Self {
        let outer = container_scope(&origin);
        Self {
            float: outer.clone(),
            vcpu: outer.clone(),
            inner: outer.clone(),
            place: RecordPlace::on_pod(&outer),
            outer,
            scope: origin,
        }
    }

    /// The outermost cgroup that is the instance's alone: its scope, or in place the container's.
    pub fn outer(&self) -> &CgroupPath {
        &self.outer
    }

    /// The pod's cgroup, which is above that; `None` in a scope.
    pub fn pod(&self) -> Option<CgroupPath> {
        let parent = self.outer.parent()?;
        (parent != CgroupPath::slice()).then_some(parent)
    }

    /// Where the record is.
    pub fn place(&self) -> &RecordPlace {
        &self.place
    }

    /// The scope; in place the cgroup that the container's processes are in.
    pub fn scope(&self) -> &CgroupPath {
        &self.scope
    }

    /// The root of the threaded domain, or the container's cgroup that is the partition.
    pub fn inner(&self) -> &CgroupPath {
        &self.inner
    }

    /// Whether this is an instance's cgroup for everything except vCPU threads, by its name.
    pub fn is_float(cgroup: &CgroupPath) -> bool {
        [IN_SCOPE[0], IN_PLACE[0]].contains(&cgroup.name())
    }

    /// What is in the way of these cgroups, before the container is an instance in place: one of them, or what is below its `housekeeping`
    /// where that is KubeVirt's.
    pub fn conflicting_cgroup(
        &self,
        cgroups: &dyn Cgroups,
        is_kubevirts: bool,
    ) -> Result<Option<CgroupPath>, CgroupError> {
        for leaf in [&self.float, &self.vcpu]
            .into_iter()
            .filter(|leaf| cgroups.exists(leaf))
        {
            if !(is_kubevirts && *leaf == self.float) {
                return Ok(Some(leaf.clone()));
            }
            if let Some(name) = cgroups.some_children(leaf, 1)?.first() {
                return Ok(Some(leaf.child(name)));
            }
        }
        Ok(None)
    }

    /// For everything except vCPU threads; the container's own cgroup where that is the partition.
    pub fn float(&self) -> &CgroupPath {
        &self.float
    }

    /// For the vCPU threads, or the container's cgroup that is the partition.
    pub fn vcpu(&self) -> &CgroupPath {
        &self.vcpu
    }

    /// Whether everything except the vCPU threads has a cgroup of its own. Without one the container's own cgroup is the partition.
    pub fn has_float(&self) -> bool {
        self.float != self.vcpu
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
