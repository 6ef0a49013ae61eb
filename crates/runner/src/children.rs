//! Reaps children. PID 1 inherits every orphan of its PID namespace and has to reap them.
//!
//! Tokio's own child handling is not used: it waits for its children itself, and `waitpid(-1)` would take their status away. Here one
//! task takes every status, and passes it to the holder of the `Child`.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(u8),
    Signal(u8),
}

impl Exit {
    /// The exit code a shell would give: its own, or 128 + signal.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128_u8.saturating_add(signal),
        }
    }

    fn from_status(status: WaitStatus) -> Option<Exit> {
        let number = |n: i32| u8::try_from(n & 0xff).unwrap_or(u8::MAX);
        status
            .exit_status()
            .map(|code| Exit::Code(number(code)))
            .or_else(|| status.terminating_signal().map(|n| Exit::Signal(number(n))))
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The children that were started and have not ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Children(Arc<Mutex<HashMap<Pid, watch::Sender<Option<Exit>>>>>);

#[derive(Debug, Clone)]
pub(crate) struct Child {
    pid: Pid,
    ended: watch::Receiver<Option<Exit>>,
}

impl Child {
    /// Its PID; valid until `wait` returns.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) async fn wait(&mut self) -> Exit {
        let exit = self.ended.wait_for(Option::is_some).await.map(|exit| *exit);
        match exit {
            Ok(exit) => exit.unwrap_or(Exit::Code(u8::MAX)),
            // The reaper was dropped, which happens only when the program ends.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Children {
    /// Start reaping. Call it before the first child is started, inside the runtime.
    pub(crate) fn reap() -> io::Result<Children> {
        let children = Children::default();
        let mut died = signal(SignalKind::child())?;
        let reaper = children.clone();
        tokio::spawn(async move {
            loop {
                reaper.collect();
                if died.recv().await.is_none() {
                    return;
                }
            }
        });
        Ok(children)
    }

    /// Start a child and watch it.
    ///
    /// The child may end before it is in the table. That is harmless: the runtime has one thread, there is no await
    /// between start and entry, so the reaper cannot run in between; and the table is locked meanwhile.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Dropping std's handle neither waits nor kills.
        let pid = i32::try_from(command.spawn()?.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(io::ErrorKind::InvalidData)?;
        let (sender, ended) = watch::channel(None);
        watched.insert(pid, sender);
        Ok(Child { pid, ended })
    }

    /// Takes all statuses that are available: one SIGCHLD may be for several children.
    fn collect(&self) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if let Some(exit) = Exit::from_status(status) {
                        match watched.remove(&pid) {
                            Some(sender) => {
                                sender.send_replace(Some(exit));
                            }
                            None => tracing::debug!("reaped {}: {exit}", pid.as_raw_nonzero()),
                        }
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                // No child has ended, or there is no child.
                Ok(None) | Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(Exit::Code(0).code(), 0);
        assert_eq!(Exit::Code(3).code(), 3);
        assert_eq!(Exit::Signal(9).code(), 137);
        assert_eq!(Exit::Signal(15).to_string(), "signal 15");
    }
}
