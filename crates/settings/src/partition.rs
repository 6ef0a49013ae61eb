//! The kinds of cpuset partition that `vcpu/` can be.

use stelia_cpus::text::named;

named! {
    /// The values of `cpuset.cpus.partition` (kernel: `Documentation/admin-guide/cgroup-v2.rst`) that can be asked for.
    pub enum Partition {
        /// No other task runs there, and the scheduler does not balance load: every thread must be pinned.
        Isolated = "isolated",
        /// No other task runs there, once the mask of the kernel's unbound workers excludes the CPUs; the scheduler
        /// balances threads that are not pinned.
        Root = "root",
        /// No partition: other tasks are kept off by `AllowedCPUs=` of their units only. The state is `pinned`.
        Member = "member",
    }
}
