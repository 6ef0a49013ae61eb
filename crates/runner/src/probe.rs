//! `stelia-runner probe` and `stop`, which connect to the runner of their container. They have no async runtime and no threads,
//! because probes run often.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cli::{ProbeKind, ProbeOptions, RunnerOptions};
use super::state::RunnerState;
use super::status_socket::SOCKET;

/// A runner that does not answer within this time counts as hung.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of an answer, in bytes. A state has a few hundred, and some more for each vCPU.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

pub(crate) fn probe(options: &ProbeOptions) -> ExitCode {
    let socket = socket(&options.place);
    let answer = connect(&socket).and_then(ask);
    let answer = answer.map_err(|text| format!("no runner answers on {}: {text}", socket.display()));
    report(answer.and_then(|(state, text)| match options.what {
        ProbeKind::Readiness => state.readiness(),
        ProbeKind::Liveness => state.liveness(),
        ProbeKind::State => Ok(text),
    }))
}

/// Sends the runner SIGTERM and waits for its end: for preStop in images without a shell.
pub(crate) fn stop(place: &RunnerOptions) -> ExitCode {
    let socket = socket(place);
    let ended = connect(&socket).and_then(|stream| end(&stream));
    let ended = ended.map_err(|text| format!("{}: {text}", socket.display()));
    report(ended.map(|()| "the runner ended".to_owned()))
}

fn socket(place: &RunnerOptions) -> PathBuf {
    place.directory().unwrap_or_default().join(SOCKET)
}

/// kubelet shows a failed probe's output in the pod's events.
fn report(result: Result<String, String>) -> ExitCode {
    let (Ok(text) | Err(text)) = &result;
    let _ = writeln!(std::io::stdout(), "{text}");
    if result.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn connect(socket: &Path) -> Result<UnixStream, String> {
    let stream = UnixStream::connect(socket).map_err(|e| e.to_string())?;
    stream
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .map_err(|e| e.to_string())?;
    Ok(stream)
}

fn ask(stream: UnixStream) -> Result<(RunnerState, String), String> {
    let mut text = String::new();
    let read = stream.take(MAX_ANSWER_BYTES).read_to_string(&mut text);
    read.map_err(|e| e.to_string())?;
    let text = text.trim().to_owned();
    let state = serde_json::from_str(&text).map_err(|e| format!("unexpected answer: {e}"))?;
    Ok((state, text))
}

fn end(stream: &UnixStream) -> Result<(), String> {
    // The listening process.
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|e| format!("SO_PEERCRED: {e}"))?;
    let runner = pidfd_open(peer.pid, PidfdFlags::empty()).map_err(|e| format!("pidfd_open: {e}"))?;
    pidfd_send_signal(&runner, Signal::TERM).map_err(|e| format!("send SIGTERM: {e}"))?;
    // A pidfd is readable when its process has ended. kubelet limits the time of a preStop hook.
    let mut ended = [PollFd::new(&runner, PollFlags::IN)];
    loop {
        match poll(&mut ended, None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("wait for the runner's end: {error}")),
        }
    }
}
