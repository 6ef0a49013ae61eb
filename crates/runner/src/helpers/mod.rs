//! Helper programs of a VM, such as virtiofsd and dnsmasq. Each is started before or after QEMU, restarted or not when it ends, and
//! stopped after QEMU; its output goes to the log under its name.

mod output;
mod policy;
pub(crate) mod spec;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::children::{Child, Children, Exit};
use super::error::Error;
use super::status_socket::Status;
use policy::AfterExit;
use spec::{HelperSpec, Start};

/// The time from SIGTERM to SIGKILL. A pod has 30 s in total: 25 s for the guest, 3 s for QEMU, and this for the helpers.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit for a `wait-for` path to appear.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Helpers {
    specs: Vec<HelperSpec>,
    children: Children,
    status: Status,
    tasks: Vec<JoinHandle<()>>,
    stopping: CancellationToken,
    fatal: (mpsc::UnboundedSender<Error>, mpsc::UnboundedReceiver<Error>),
}

impl Helpers {
    pub(crate) fn new(specs: Vec<HelperSpec>, children: &Children, status: &Status) -> Helpers {
        Helpers {
            specs,
            children: children.clone(),
            status: status.clone(),
            tasks: Vec::new(),
            stopping: CancellationToken::new(),
            fatal: mpsc::unbounded_channel(),
        }
    }

    /// Starts the helpers that QEMU may need, one after the other: the next one when the `wait-for` path of this one exists.
    pub(crate) async fn start_before(&mut self) -> Result<(), Error> {
        let specs = self.specs_starting(Start::Before);
        for spec in specs {
            // A socket of the container's previous run would be taken for readiness.
            if let Some(path) = &spec.wait_for {
                super::stale_sockets::remove_stale_socket(path)?;
            }
            self.start(&spec);
            if let Some(path) = &spec.wait_for {
                tokio::select! {
                    ready = wait_until_ready(&spec.name, path, READY_TIMEOUT) => ready?,
                    Some(error) = self.fatal.1.recv() => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Starts the helpers that are declared with `start=after`.
    pub(crate) fn start_after(&mut self) {
        for spec in self.specs_starting(Start::After) {
            self.start(&spec);
        }
    }

    /// Waits for the end of a helper with `on-exit=fatal`.
    pub(crate) async fn fatal(&mut self) -> Error {
        match self.fatal.1.recv().await {
            Some(error) => error,
            // Not reached: `self` has a sender.
            None => std::future::pending().await,
        }
    }

    /// Sends SIGTERM to all helpers, and SIGKILL after `STOP_TIMEOUT`.
    pub(crate) async fn stop(&mut self) {
        self.stopping.cancel();
        for task in self.tasks.drain(..) {
            // It fails only by a panic, which was printed.
            let _ = task.await;
        }
    }

    fn specs_starting(&self, start: Start) -> Vec<HelperSpec> {
        self.specs.iter().filter(|spec| spec.start == start).cloned().collect()
    }

    fn start(&mut self, spec: &HelperSpec) {
        let helper = Helper {
            spec: spec.clone(),
            children: self.children.clone(),
            status: self.status.clone(),
            stopping: self.stopping.clone(),
            fatal: self.fatal.0.clone(),
        };
        self.tasks.push(tokio::spawn(helper.run()));
    }
}

async fn wait_until_ready(name: &str, path: &Path, limit: Duration) -> Result<(), Error> {
    let appeared = async {
        while std::fs::symlink_metadata(path).is_err() {
            sleep(READY_POLL_INTERVAL).await;
        }
    };
    timeout(limit, appeared).await.map_err(|_| Error::Helper {
        name: name.to_owned(),
        text: format!("{} is not there after {} s", path.display(), limit.as_secs()),
    })
}

/// One helper with its restarts.
struct Helper {
    spec: HelperSpec,
    children: Children,
    status: Status,
    stopping: CancellationToken,
    fatal: mpsc::UnboundedSender<Error>,
}

impl Helper {
    async fn run(self) {
        let name = self.spec.name.as_str();
        let mut failures = 0;
        loop {
            let started = Instant::now();
            let end = match self.spawn() {
                Ok((mut child, mut output)) => {
                    tracing::info!(helper = name, "started, process {}", child.pid());
                    self.set_state("running");
                    let end = tokio::select! {
                        exit = child.wait() => exit,
                        () = self.stopping.cancelled() => end(name, &mut child).await,
                    };
                    output.finish().await;
                    end.to_string()
                }
                Err(cause) => format!("not started: {cause}"),
            };
            if self.stopping.is_cancelled() {
                tracing::info!(helper = name, "stopped: {end}");
                self.set_state("ended");
                return;
            }
            let (next, count) = policy::after_exit(self.spec.on_exit, started.elapsed(), failures);
            failures = count;
            match next {
                AfterExit::Restart(pause) => {
                    tracing::warn!(helper = name, "ended: {end}; again in {} ms", pause.as_millis());
                    self.set_state("waiting");
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.stopping.cancelled() => return self.set_state("ended"),
                    }
                }
                AfterExit::StayEnded => {
                    tracing::info!(helper = name, "ended: {end}");
                    return self.set_state("ended");
                }
                AfterExit::ShutDown => {
                    self.set_state("ended");
                    // The receiver is gone only when the runner ends anyway.
                    let _ = self.fatal.send(Error::Helper {
                        name: self.spec.name.clone(),
                        text: format!("ended: {end}"),
                    });
                    return;
                }
            }
        }
    }

    /// Starts the helper in its own process group, so that Ctrl-C on a terminal does not reach it, and it can be ended with its children.
    fn spawn(&self) -> std::io::Result<(Child, output::Output)> {
        let (reader, writer) = std::io::pipe()?;
        let mut words = self.spec.command.iter();
        let program = words.next().ok_or(std::io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command
            .args(words)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let child = self.children.spawn(&mut command)?;
        // The command has the pipe's write end: while that is open, reading the output does not end.
        drop(command);
        Ok((child, output::Output::follow(&self.spec.name, reader)?))
    }

    fn set_state(&self, state: &str) {
        self.status.update(|runner| {
            runner.helpers.insert(self.spec.name.clone(), state.to_owned());
        });
    }
}

/// Ends a helper's whole process group.
async fn end(name: &str, child: &mut Child) -> Exit {
    signal(child.pid(), Signal::TERM);
    match timeout(STOP_TIMEOUT, child.wait()).await {
        Ok(exit) => exit,
        Err(_) => {
            tracing::warn!(
                helper = name,
                "does not end within {} s: killing it",
                STOP_TIMEOUT.as_secs()
            );
            signal(child.pid(), Signal::KILL);
            child.wait().await
        }
    }
}

/// Sends a signal to a process group. Its leader has not been reaped, so no other group can have its number.
fn signal(group: Pid, signal: Signal) {
    if let Err(error) = kill_process_group(group, signal) {
        tracing::debug!("signal to process group {group}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_waited_for_is_named_when_it_does_not_come() {
        let limit = Duration::from_millis(1);
        let error = wait_until_ready("fs", Path::new("/nonexistent/socket"), limit)
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "helper fs: /nonexistent/socket is not there after 0 s"
        );
        assert!(wait_until_ready("fs", Path::new("/"), READY_TIMEOUT).await.is_ok());
    }
}
