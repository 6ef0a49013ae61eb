//! `kubelet-standin`: hands its words, its folder and its open files to the stand-in, which serves in the background as kubelet
//! does (`kubelet-standin.py`), and ends with the exit code that it answers.
//!
//! Not in Python: starting that takes an emulated node a seventh of a second, and a test calls the stand-in ten times.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recv, sendmsg, socket_with,
};

const SOCKET: &str = "/run/kubelet-standin/socket";
/// The node's agent starts the stand-in in the background.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<ExitCode> {
    let stand_in =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).context("socket")?;
    let address = SocketAddrUnix::new(SOCKET)?;
    let started = Instant::now();
    loop {
        match connect(&stand_in, &address) {
            Ok(()) => break,
            Err(Errno::NOENT | Errno::CONNREFUSED) if started.elapsed() < CONNECT_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(cause) => return Err(cause).with_context(|| format!("connect to {SOCKET}")),
        }
    }
    let mut words = std::env::current_dir()
        .context("its folder")?
        .into_os_string()
        .as_bytes()
        .to_vec();
    for word in std::env::args_os().skip(1) {
        words.push(0);
        words.extend_from_slice(word.as_bytes());
    }
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let files = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        bail!("no room for three files in a message");
    }
    sendmsg(&stand_in, &[IoSlice::new(&words)], &mut control, SendFlags::empty()).context("send the words")?;
    let mut code = [0];
    let (_, length) = recv(&stand_in, &mut code[..], RecvFlags::empty()).context("receive the exit code")?;
    if length == 0 {
        bail!("the stand-in ended without an answer");
    }
    Ok(ExitCode::from(code[0]))
}
