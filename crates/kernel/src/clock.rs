//! The kernel's clocks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The time since the host booted, including suspend (`CLOCK_BOOTTIME`).
pub fn since_boot() -> Duration {
    clock_gettime(ClockId::Boottime).try_into().unwrap_or_default()
}

/// [`since_boot`] in microseconds.
pub fn up_us() -> u64 {
    since_boot().as_micros().try_into().unwrap_or(u64::MAX)
}

/// Microseconds of `CLOCK_MONOTONIC`, which counts from the boot without suspend.
pub fn monotonic_us() -> u64 {
    let now: Duration = clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default();
    now.as_micros().try_into().unwrap_or(u64::MAX)
}

/// Microseconds since the epoch.
pub fn now_us() -> u64 {
    us(SystemTime::now())
}

/// A time in microseconds since the epoch.
pub fn us(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros().try_into().unwrap_or(u64::MAX))
}
