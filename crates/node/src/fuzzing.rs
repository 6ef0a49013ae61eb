//! Doors for the targets in `fuzz/`, which read bytes of others. Built for them only.

use crate::cgroup::CgroupPath;
use crate::proc;
use crate::runtime::Config;
use crate::systemd::Devices;

/// Field 22 of `/proc/<pid>/stat`.
pub fn start_time(stat: &str) -> Option<u64> {
    proc::start_time(stat)
}

/// `NSpid` of `/proc/<pid>/status`.
pub fn ns_numbers(status: &str) -> Option<Vec<i32>> {
    proc::ns_numbers(status)
}

/// `Tgid` of `/proc/<pid>/status`.
pub fn thread_group(status: &str) -> Option<i32> {
    proc::thread_group(status)
}

/// The cgroup v2 path of `/proc/<pid>/cgroup`.
pub fn unified_cgroup(text: &str) -> Option<CgroupPath> {
    proc::unified_cgroup(text)
}

/// The container's name and devices by a runtime's `config.json`, with the text of `/proc/devices`.
pub fn runtime_config(json: &str, proc_devices: &str) -> Option<(Option<String>, Devices)> {
    let config = Config::parse(json)?;
    Some((config.annotated_name(), config.devices(proc_devices)))
}
