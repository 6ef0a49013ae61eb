//! Commands that say why, and whether what is promised holds: the group "Check" of the help.

pub mod doctor;
pub mod ledger;
pub(crate) mod noise;
pub(crate) mod report;
pub(crate) mod verify;
pub(crate) mod why;

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::shared::daemon::Description;
use crate::shared::kernel::Roots;
use crate::shared::kernel::rates::{Model, rates};
use crate::shared::kernel::sample::Sample;

/// The load of the VMs that the daemon describes, and what disturbs them, measured for this long.
async fn measured(description: &Description, roots: &Roots, time: Duration) -> Model {
    let began = Instant::now();
    let before = Sample::read(description, roots, began.elapsed());
    sleep(time).await;
    rates(&before, &Sample::read(description, roots, began.elapsed()))
}

/// The first of these, and how many more there are.
fn some<T: ToString>(all: &[T]) -> String {
    const MAX_NAMED: usize = 3;
    let mut named: Vec<String> = all.iter().take(MAX_NAMED).map(T::to_string).collect();
    if all.len() > MAX_NAMED {
        named.push(format!("and {} more", all.len() - MAX_NAMED));
    }
    named.join("; ")
}
