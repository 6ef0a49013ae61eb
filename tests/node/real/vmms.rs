//! steliad beside Cloud Hypervisor and Firecracker.
