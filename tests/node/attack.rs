//! A tenant who broke out into the container: what can be sent to the runner socket by hand.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use zbus::Message;

use crate::support::beside;

const SOCKET: &str = "/run/stelia/runner/socket";
/// Longer than any patience of the daemon.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a client of uid 0 says before its first message.
const HANDSHAKE: &[u8] = b"\0AUTH EXTERNAL 30\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n";
/// The fixed part of a header that announces 120 MiB.
const HUGE: [u8; 16] = [b'l', 1, 0, 1, 0, 0, 0x80, 7, 1, 0, 0, 0, 0, 0, 0, 0];

pub const ATTACKS: [&str; 9] = [
    "line-feed",
    "early-descriptors",
    "endless-handshake",
    "huge-header",
    "half-messages",
    "silence",
    "storm",
    "calls-unread",
    "signals",
];

fn connect() -> UnixStream {
    let stream = UnixStream::connect(SOCKET).expect(SOCKET);
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

fn assert_cut(stream: &mut UnixStream) {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return,
            Err(e) => panic!("the connection stays: {e}"),
        }
    }
}

fn each_is_cut(count: usize, bytes: &[u8]) {
    for _ in 0..count {
        let mut stream = connect();
        // The daemon may end the connection before all is sent.
        let _ = stream.write_all(bytes);
        assert_cut(&mut stream);
    }
}

/// As many connections as one process may have, each saying this; all are cut.
fn all_are_cut(count: usize, bytes: &[u8]) {
    let mut streams: Vec<UnixStream> = (0..count).map(|_| connect()).collect();
    for stream in &mut streams {
        let _ = stream.write_all(bytes);
    }
    for stream in &mut streams {
        assert_cut(stream);
    }
}

fn early_descriptors() {
    let null = File::open("/dev/null").expect("/dev/null");
    for _ in 0..100 {
        let mut stream = connect();
        let fds = [null.as_fd(); 200];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        // The daemon may have ended it already: one pod has few places.
        let _ = sendmsg(&stream, &[IoSlice::new(b"\0AUTH")], &mut ancillary, SendFlags::NOSIGNAL);
        assert_cut(&mut stream);
    }
}

/// Send messages as fast as they are taken, and read nothing, until `until` or the daemon ends it.
fn flood(message: &[u8], until: Instant) -> usize {
    let mut stream = connect();
    let patience = Some(Duration::from_millis(500));
    stream.set_write_timeout(patience).expect("timeout");
    let mut sent = 0;
    if stream.write_all(HANDSHAKE).is_err() {
        return 0;
    }
    while Instant::now() < until {
        match stream.write(message) {
            // A part of it is an attack as well.
            Ok(_) => sent += 1,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    sent
}

fn floods(message: &Message) {
    let until = Instant::now() + Duration::from_secs(5);
    let bytes: &[u8] = message.data();
    let mut sent = 0;
    while Instant::now() < until {
        sent += flood(bytes, until);
    }
    println!("  {sent} messages of {} bytes were taken", bytes.len());
}

fn attack(name: &str) {
    match name {
        "line-feed" => each_is_cut(300, b"\n"),
        "early-descriptors" => early_descriptors(),
        "endless-handshake" => each_is_cut(100, &[&b"\0"[..], &[b'x'; 1 << 20]].concat()),
        "huge-header" => each_is_cut(100, &[HANDSHAKE, &HUGE].concat()),
        "half-messages" => {
            let mut header = HUGE;
            // 250 KiB, and all of it but the end.
            header[4..8].copy_from_slice(&(250u32 << 10).to_le_bytes());
            all_are_cut(100, &[HANDSHAKE, &header, &vec![0; 200 << 10]].concat());
        }
        "silence" => all_are_cut(200, b""),
        "storm" => (0..3000).for_each(|_| drop(connect())),
        "calls-unread" => {
            let call = Message::method_call("/io/stelia/Isolation1", "Introspect");
            let call = call.interface("org.freedesktop.DBus.Introspectable").build(&());
            floods(&call.expect("a message"));
        }
        "signals" => {
            let signal = Message::signal("/io/stelia/Isolation1", "io.stelia.Isolation1.Manager", "InstanceNew");
            let signal = signal.build(&vec![0u8; 240 << 10]);
            floods(&signal.expect("a message"));
        }
        other => panic!("no attack {other}"),
    }
}

/// Exists once the attack may end. The container sees the node's files.
pub fn over() -> PathBuf {
    beside("attack-over")
}

/// Runs in a pod.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    let Ok(name) = std::env::var("STELIA_ATTACK") else {
        return;
    };
    let (over, started) = (over(), Instant::now());
    let mut times = 0;
    while times == 0 || !over.exists() {
        attack(&name);
        times += 1;
    }
    println!("ATTACKED {name}: {times} times in {} ms", started.elapsed().as_millis());
}
