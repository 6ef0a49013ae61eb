//! The protocol of irqbalance's socket (its function `sock_handle`): one message a connection, sent with the sender's
//! credentials; only `setup` is answered, in one piece, and irqbalance closes the connection after the message.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred, sendmsg};
use rustix::process::{getgid, getpid, getuid};
use stelia_cpus::CpuSet;
use stelia_cpus::text::excerpt::excerpt;

use crate::client::connect_to;

/// Limit of a list, in bytes: irqbalance receives into 500 bytes and would use the beginning of a longer list.
pub(super) const MAX_LIST_BYTES: usize = 499;

/// Limit of an answer. It names every interrupt that the command line bans; this is enough for thousands.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Timeout of an answer: the main loop answers, which a scan keeps busy for milliseconds.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The answer to `setup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setup {
    /// Seconds between its scans; a ban counts from the next one on.
    pub(super) interval: u64,
    /// The CPUs that it gives no interrupts, by its last scan.
    pub(super) banned: CpuSet,
}

/// `SLEEP 10 [IRQ 1 LOAD 2 DIFF 3 CLASS 4 …] BANNED 00000000,0000000c`.
pub(super) fn parse(answer: &str) -> Option<Setup> {
    let mut words = answer.split_whitespace();
    if words.next() != Some("SLEEP") {
        return None;
    }
    let interval = words.next()?.parse().ok()?;
    let mask = words.skip_while(|word| *word != "BANNED").collect::<Vec<_>>();
    let banned = match mask[..] {
        // Some releases print no digit of a mask that is empty.
        ["BANNED"] => CpuSet::new(),
        ["BANNED", mask] => CpuSet::from_mask(mask)?,
        _ => return None,
    };
    Some(Setup { interval, banned })
}

/// Ask for the interval and the banned CPUs.
pub(super) fn setup(socket: &Path) -> io::Result<Setup> {
    let answer = exchange(socket, "setup")?;
    parse(&answer).ok_or_else(|| {
        let text = format!("its answer to \"setup\" is not understood: {:?}", excerpt(&answer));
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// The message that bans exactly these CPUs. Without a word after `cpus` irqbalance ends with a segmentation fault; NULL stands
/// for the CPUs of its environment.
pub(super) fn ban(cpus: &CpuSet) -> String {
    if cpus.is_empty() {
        "settings cpus NULL".to_owned()
    } else {
        format!("settings cpus {cpus}")
    }
}

/// Send a message and return what is answered before the connection ends.
pub(super) fn exchange(path: &Path, message: &str) -> io::Result<String> {
    let end = Instant::now() + ANSWER_TIMEOUT;
    // With a timeout, because its queue holds one connection.
    let mut stream = connect_to(path, ANSWER_TIMEOUT)?;
    let credentials = UCred {
        pid: getpid(),
        uid: getuid(),
        gid: getgid(),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmCredentials(credentials));
    // In one piece: it receives once.
    let sent = sendmsg(
        &stream,
        &[IoSlice::new(message.as_bytes())],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent != message.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(String::from_utf8_lossy(&answer).into_owned()),
            Ok(got) => answer.extend_from_slice(&part[..got]),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
        if answer.len() > MAX_ANSWER_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer does not end"));
        }
    }
}
