//! The daemon stopped by a signal, while a test does what the daemon would undo or would do itself.

use super::{output, run};

/// The daemon is stopped until this value is dropped. Services have no watchdog meanwhile: a slow node may need longer than the daemon's.
pub struct StoppedDaemon(());

impl StoppedDaemon {
    pub fn stop() -> Self {
        run("systemctl service-watchdogs no");
        run("systemctl kill --kill-whom=main --signal=STOP steliad.service");
        Self(())
    }
}

impl Drop for StoppedDaemon {
    fn drop(&mut self) {
        output("systemctl kill --kill-whom=main --signal=CONT steliad.service");
        output("systemctl service-watchdogs yes");
    }
}
