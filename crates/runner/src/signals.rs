//! Signals. PID 1 has no default actions: a signal without a handler is lost. Under an init such as tini, which passes every
//! signal on, a signal without a handler would end the runner.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers for the signals that end the runner, and for those that it ignores: with SIG_IGN they would stay ignored in QEMU.
#[derive(Debug)]
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    user: (Signal, Signal),
}

impl Stop {
    pub(crate) fn listen() -> io::Result<Stop> {
        Ok(Stop {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            user: (
                signal(SignalKind::user_defined1())?,
                signal(SignalKind::user_defined2())?,
            ),
        })
    }

    /// The number of the next SIGTERM, SIGINT, SIGQUIT or SIGHUP, each of which images have as their `STOPSIGNAL`.
    pub(crate) async fn recv(&mut self) -> u8 {
        loop {
            tokio::select! {
                Some(()) = self.terminate.recv() => return 15,
                Some(()) = self.interrupt.recv() => return 2,
                Some(()) = self.quit.recv() => return 3,
                Some(()) = self.hangup.recv() => return 1,
                Some(()) = self.user.0.recv() => tracing::info!("SIGUSR1 ignored"),
                Some(()) = self.user.1.recv() => tracing::info!("SIGUSR2 ignored"),
                else => std::future::pending().await,
            }
        }
    }
}
