//! `stelia-runner probe` and `stop`: the runner, asked and told from outside. No runtime and no thread: a probe runs often.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cli::{ProbeOptions, What, WhereOptions};
use super::state::State;
use super::status::SOCKET;

/// A runner that has not answered by then hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// A state is some hundred bytes and a line a vCPU.
const MAX_ANSWER: u64 = 4 << 20;

/// `stelia-runner probe`: 0 is yes.
pub fn probe(options: &ProbeOptions) -> ExitCode {
    let socket = socket(&options.place);
    let (state, text) = match connect(&socket).and_then(ask) {
        Ok(answer) => answer,
        Err(text) => return said(false, &format!("no runner answers on {}: {text}", socket.display())),
    };
    let verdict = match options.what {
        What::Readiness => state.readiness(),
        What::Liveness => state.liveness(),
        What::State => Ok(text),
    };
    match verdict {
        Ok(text) => said(true, &text),
        Err(text) => said(false, &text),
    }
}

/// `stelia-runner stop`: SIGTERM to the runner, and its end waited for. For preStop, where images hold no shell.
pub fn stop(place: &WhereOptions) -> ExitCode {
    let socket = socket(place);
    match connect(&socket).and_then(|stream| end(&stream)) {
        Ok(()) => said(true, "the runner ended"),
        Err(text) => said(false, &format!("{}: {text}", socket.display())),
    }
}

fn socket(place: &WhereOptions) -> PathBuf {
    place.directory().unwrap_or_default().join(SOCKET)
}

/// kubelet shows a failed probe's output in the pod's events.
fn said(good: bool, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stdout(), "{text}");
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn connect(socket: &Path) -> Result<UnixStream, String> {
    let stream = UnixStream::connect(socket).map_err(|e| e.to_string())?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(|e| e.to_string())?;
    Ok(stream)
}

fn ask(stream: UnixStream) -> Result<(State, String), String> {
    let mut text = String::new();
    let read = stream.take(MAX_ANSWER).read_to_string(&mut text);
    read.map_err(|e| e.to_string())?;
    let text = text.trim().to_owned();
    let state = serde_json::from_str(&text).map_err(|e| format!("an odd answer: {e}"))?;
    Ok((state, text))
}

fn end(stream: &UnixStream) -> Result<(), String> {
    let runner = listener(stream)?;
    pidfd_send_signal(&runner, Signal::TERM).map_err(|e| format!("send SIGTERM: {e}"))?;
    // A pidfd is readable when its process has ended. Whoever sent us here limits the time.
    let mut ended = [PollFd::new(&runner, PollFlags::IN)];
    loop {
        match poll(&mut ended, None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("wait for the runner's end: {error}")),
        }
    }
}

/// The process that listens on the other side, by the kernel's word.
fn listener(stream: &UnixStream) -> Result<OwnedFd, String> {
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|e| format!("SO_PEERCRED: {e}"))?;
    pidfd_open(peer.pid, PidfdFlags::empty()).map_err(|e| format!("pidfd_open: {e}"))
}
