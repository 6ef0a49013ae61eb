//! Lets orders be carried out by `steliad-quiet`, and by the daemon itself for kernel threads.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use stelia_api::quiet::{Problem, Report};
use steliad_quiet::files::System;
use steliad_quiet::kernel::{Directory, Kernel};
use steliad_quiet::order::{Order, SOCKET, STORE};
use steliad_quiet::{client, late_kernel_threads};

/// Carries out orders.
pub(crate) trait OrderExecutor: Send + Sync {
    /// Carry out an order. Blocks.
    ///
    /// # Errors
    /// Why nothing was changed, or why that is not known.
    fn carry_out(&self, order: &Order) -> Result<Report, String>;

    /// Whether an order of a former daemon may still be in force.
    fn may_be_in_force(&self) -> bool;
}

/// `steliad-quiet`, through its socket, and the daemon itself for kernel threads: setting their affinity takes a capability that
/// `steliad-quiet` does not have.
#[derive(Default)]
pub(crate) struct QuietExecutor {
    threads: Mutex<late_kernel_threads::ThreadHistory>,
}

impl OrderExecutor for QuietExecutor {
    fn carry_out(&self, order: &Order) -> Result<Report, String> {
        let mut moved = Report::default();
        self.move_threads(order, &mut moved);
        let report =
            client::order(Path::new(SOCKET), order, client::ANSWER_TIMEOUT).map_err(|error| error.to_string())?;
        Ok(Report {
            threads_moved: moved.threads_moved,
            threads_remaining: moved.threads_remaining,
            problems: [report.problems, moved.problems].concat(),
            ..report
        })
    }

    fn may_be_in_force(&self) -> bool {
        Path::new(STORE).is_dir()
    }
}

impl QuietExecutor {
    fn move_threads(&self, order: &Order, report: &mut Report) {
        let store = match Directory::open(STORE) {
            Ok(store) => store,
            Err(cause) => {
                let text = format!("make {STORE}: {cause}");
                return report.problems.push(Problem {
                    pod: String::new(),
                    text,
                });
            }
        };
        let system = System {
            files: &Kernel::below("/"),
            store: &store,
        };
        // A panic does not leave an entry half changed.
        let mut memory = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        late_kernel_threads::carry_out(system, order, &mut memory, report);
    }
}
