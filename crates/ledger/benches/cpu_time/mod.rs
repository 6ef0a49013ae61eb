//! What the bars of the benchmarks are held to.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn now() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// CPU time, the shortest of five: what else runs on the machine only adds to it.
pub fn shortest(mut run: impl FnMut()) -> Duration {
    let took = (0..5).map(|_| {
        let started = now();
        run();
        now() - started
    });
    took.min().unwrap_or_default()
}

/// With PRINT in the environment no bar is held.
pub fn is_within(took: Duration, bar: Duration) -> bool {
    took <= bar || std::env::var_os("PRINT").is_some()
}
