//! Programs beside QEMU: virtiofsd, dnsmasq and the like. Each is started, watched, started again or taken as fatal as it
//! was declared, and stopped when QEMU has ended; what it prints goes to the log under its name.

mod output;
mod policy;
pub mod spec;

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
use super::status::Status;
use policy::Next;
use spec::{Spec, Start};

/// From SIGTERM to SIGKILL: of the pod's 30 s the guest has 25 and QEMU 3.
const STOP_TIME: Duration = Duration::from_secs(1);
/// What a helper waits for must be there by then.
const READY_TIME: Duration = Duration::from_secs(15);
const READY_LOOK: Duration = Duration::from_millis(50);

/// A fatal helper's end, in words.
pub type Fatal = Error;

/// All helpers of one runner.
#[derive(Debug)]
pub struct Helpers {
    specs: Vec<Spec>,
    children: Children,
    status: Status,
    tasks: Vec<JoinHandle<()>>,
    stopping: CancellationToken,
    fatal: (mpsc::UnboundedSender<Fatal>, mpsc::UnboundedReceiver<Fatal>),
}

impl Helpers {
    /// None is started yet.
    pub fn new(specs: Vec<Spec>, children: &Children, status: &Status) -> Helpers {
        Helpers {
            specs,
            children: children.clone(),
            status: status.clone(),
            tasks: Vec::new(),
            stopping: CancellationToken::new(),
            fatal: mpsc::unbounded_channel(),
        }
    }

    /// Start those that QEMU may need, each when what the one before it is waited for is there.
    pub async fn start_before(&mut self) -> Result<(), Error> {
        let specs: Vec<Spec> = self.of(Start::Before);
        for spec in specs {
            // What a former life left there would be taken for readiness.
            if let Some(path) = &spec.wait_for {
                super::socket::remove_stale_socket(path)?;
            }
            self.start(&spec);
            if let Some(path) = &spec.wait_for {
                tokio::select! {
                    ready = ready(&spec.name, path, READY_TIME) => ready?,
                    Some(error) = self.fatal.1.recv() => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Start those that come when QEMU answers.
    pub fn start_after(&mut self) {
        for spec in self.of(Start::After) {
            self.start(&spec);
        }
    }

    /// The end of a helper that was declared fatal.
    pub async fn fatal(&mut self) -> Fatal {
        match self.fatal.1.recv().await {
            Some(error) => error,
            // A sender is held here.
            None => std::future::pending().await,
        }
    }

    /// SIGTERM to all, SIGKILL to what is left.
    pub async fn stop(&mut self) {
        self.stopping.cancel();
        for task in self.tasks.drain(..) {
            // Only a panic makes it fail, and that was told.
            let _ = task.await;
        }
    }

    fn of(&self, start: Start) -> Vec<Spec> {
        self.specs.iter().filter(|spec| spec.start == start).cloned().collect()
    }

    fn start(&mut self, spec: &Spec) {
        let supervised = Supervised {
            spec: spec.clone(),
            children: self.children.clone(),
            status: self.status.clone(),
            stopping: self.stopping.clone(),
            fatal: self.fatal.0.clone(),
        };
        self.tasks.push(tokio::spawn(supervised.run()));
    }
}

async fn ready(name: &str, path: &Path, limit: Duration) -> Result<(), Error> {
    let appeared = async {
        while std::fs::symlink_metadata(path).is_err() {
            sleep(READY_LOOK).await;
        }
    };
    timeout(limit, appeared).await.map_err(|_| Error::Helper {
        name: name.to_owned(),
        text: format!("{} is not there after {} s", path.display(), limit.as_secs()),
    })
}

/// One helper, for as long as the runner wants it.
struct Supervised {
    spec: Spec,
    children: Children,
    status: Status,
    stopping: CancellationToken,
    fatal: mpsc::UnboundedSender<Fatal>,
}

impl Supervised {
    async fn run(self) {
        let name = self.spec.name.as_str();
        let mut failures = 0;
        loop {
            let started = Instant::now();
            let end = match self.spawn() {
                Ok((mut child, mut output)) => {
                    tracing::info!(helper = name, "started, process {}", child.pid());
                    self.set("running");
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
                self.set("ended");
                return;
            }
            let (next, count) = policy::next(self.spec.on_exit, started.elapsed(), failures);
            failures = count;
            match next {
                Next::Again(pause) => {
                    tracing::warn!(helper = name, "ended: {end}; again in {} ms", pause.as_millis());
                    self.set("waiting");
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.stopping.cancelled() => return self.set("ended"),
                    }
                }
                Next::Leave => {
                    tracing::info!(helper = name, "ended: {end}");
                    return self.set("ended");
                }
                Next::Fatal => {
                    self.set("ended");
                    // Nobody hears it when the runner is ending anyway.
                    let _ = self.fatal.send(Error::Helper {
                        name: self.spec.name.clone(),
                        text: format!("ended: {end}"),
                    });
                    return;
                }
            }
        }
    }

    /// A process group of its own: Ctrl-C on a terminal is not for it, and it can be ended with what it started.
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
        // The command holds the pipe's other end: with it open there would never be an end of the output.
        drop(command);
        Ok((child, output::Output::follow(&self.spec.name, reader)?))
    }

    fn set(&self, what: &str) {
        self.status.update(|state| {
            state.helpers.insert(self.spec.name.clone(), what.to_owned());
        });
    }
}

/// End a helper and what it started.
async fn end(name: &str, child: &mut Child) -> Exit {
    signal(child.pid(), Signal::TERM);
    match timeout(STOP_TIME, child.wait()).await {
        Ok(exit) => exit,
        Err(_) => {
            tracing::warn!(
                helper = name,
                "does not end within {} s: killing it",
                STOP_TIME.as_secs()
            );
            signal(child.pid(), Signal::KILL);
            child.wait().await
        }
    }
}

/// To the whole group. Its leader has not been reaped, so the number still means it.
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
        let error = ready("fs", Path::new("/nonexistent/socket"), limit).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "helper fs: /nonexistent/socket is not there after 0 s"
        );
        assert!(ready("fs", Path::new("/"), READY_TIME).await.is_ok());
    }
}
