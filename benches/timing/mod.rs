//! What the benchmarks' own figures are: a measurement that criterion does not print.

use std::time::{Duration, Instant};

/// The median of eleven runs.
pub fn median(mut run: impl FnMut()) -> Duration {
    let mut took: Vec<Duration> = (0..11)
        .map(|_| {
            let started = Instant::now();
            run();
            started.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2]
}
