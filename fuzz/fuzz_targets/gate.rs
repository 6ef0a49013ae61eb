//! The gate in front of the runner socket. The first byte of the input decides how the rest is cut and where descriptors
//! come; the rest is what a peer sends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steliad::fuzzing::{BYTES_A_CALL, GateError, MAX_FDS, MAX_HANDSHAKE, MAX_MESSAGE, Stream};

/// What the largest message costs.
const DEAREST: usize = 1 + (MAX_MESSAGE - 16) / BYTES_A_CALL;

fuzz_target!(|input: &[u8]| {
    let Some((&seed, bytes)) = input.split_first() else {
        return;
    };
    let wanted = judge(bytes);
    let mut whole = Stream::default();
    let verdict = whole.feed(bytes, 0);
    assert_eq!(verdict, wanted.as_ref().map(|seen| seen.cost).map_err(Clone::clone));
    let mut random = Random(u64::from(seed) + 1);
    cut(bytes, &wanted, &mut random);
    with_descriptors(bytes, &wanted, &mut random);
});

/// The verdict is the same however the bytes are cut.
fn cut(bytes: &[u8], wanted: &Result<Seen, GateError>, random: &mut Random) {
    let mut stream = Stream::default();
    let mut cost = 0;
    let mut rest = bytes;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(random.chunk().min(rest.len()));
        rest = after;
        match stream.feed(chunk, 0) {
            // What a chunk costs is bounded by the headers that can end in it.
            Ok(more) => {
                assert!(more as usize <= DEAREST * (chunk.len() / 16 + 1));
                cost += more;
            }
            Err(error) => return assert_eq!(Err(&error), wanted.as_ref().map(|_| ())),
        }
    }
    let seen = wanted.as_ref().expect("chunks were taken that are refused together");
    assert_eq!((cost, stream.is_within_message()), (seen.cost, seen.within));
}

/// Descriptors are refused before BEGIN, and no message has more than it may, whichever of those that a chunk touches its
/// descriptors belong to.
fn with_descriptors(bytes: &[u8], wanted: &Result<Seen, GateError>, random: &mut Random) {
    let mut stream = Stream::default();
    let mut chunks: Vec<(usize, usize, usize)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + random.chunk()).min(bytes.len());
        let fds = random.descriptors();
        match stream.feed(&bytes[at..end], fds) {
            Ok(_) => chunks.push((at, end, fds)),
            Err(GateError::FdsBeforeBegin) => return assert!(fds > 0 && !begun(&bytes[..end])),
            Err(GateError::TooManyFds) => return assert!(fds > 0),
            Err(error) => return assert_eq!(Err(&error), wanted.as_ref().map(|_| ())),
        }
        at = end;
    }
    let Ok(seen) = wanted else {
        panic!("chunks were taken that are refused together")
    };
    for &(start, end) in &seen.messages {
        let touching = chunks.iter().filter(|(from, to, _)| *from < end && *to > start);
        let fds: usize = touching.map(|(_, _, fds)| fds).sum();
        assert!(fds <= MAX_FDS, "{fds} descriptors with the message at {start}");
    }
}

/// What the gate is to say of a stream, by the words of the specification and not step by step.
struct Seen {
    cost: u32,
    within: bool,
    /// Where each message begins and ends; the last may end beyond what was sent.
    messages: Vec<(usize, usize)>,
}

fn judge(bytes: &[u8]) -> Result<Seen, GateError> {
    let mut seen = Seen {
        cost: 0,
        within: true,
        messages: Vec::new(),
    };
    match bytes.first() {
        None => return Ok(seen),
        Some(0) => {}
        Some(other) => return Err(GateError::NotNul(*other)),
    }
    let head = &bytes[..bytes.len().min(MAX_HANDSHAKE)];
    let mut at = 1;
    loop {
        let Some(length) = head[at..].iter().position(|byte| *byte == b'\n') else {
            return if bytes.len() > MAX_HANDSHAKE {
                Err(GateError::HandshakeTooLong)
            } else {
                Ok(seen)
            };
        };
        let line = &head[at..at + length];
        at += length + 1;
        match line.strip_suffix(b"\r") {
            None => return Err(GateError::BareLineFeed),
            Some(b"BEGIN") => break,
            Some(_) => {}
        }
    }
    while at < bytes.len() {
        let message = &bytes[at..];
        if !matches!(message[0], b'l' | b'B') {
            return Err(GateError::BadEndian(message[0]));
        }
        let Some(header) = message.first_chunk::<16>() else {
            seen.messages.push((at, usize::MAX));
            return Ok(seen);
        };
        let number = |at: usize| {
            let bytes = header[at..at + 4].try_into().unwrap();
            u64::from(if header[0] == b'l' {
                u32::from_le_bytes(bytes)
            } else {
                u32::from_be_bytes(bytes)
            })
        };
        let length = 16 + number(12).div_ceil(8) * 8 + number(4);
        if length > MAX_MESSAGE as u64 {
            return Err(GateError::MessageTooLong(length));
        }
        let length = length as usize;
        seen.cost += 1 + ((length - 16) / BYTES_A_CALL) as u32;
        seen.messages.push((at, at + length));
        at += length;
    }
    seen.within = at != bytes.len();
    Ok(seen)
}

/// Whether the handshake ends in these bytes, which the gate has taken.
fn begun(bytes: &[u8]) -> bool {
    let line = b"BEGIN\r\n";
    bytes[1..].starts_with(line)
        || bytes
            .windows(line.len() + 1)
            .any(|window| window[0] == b'\n' && window[1..] == *line)
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize
    }

    /// The length of a chunk: mostly short, sometimes the 16 bytes zbus reads first, sometimes long.
    fn chunk(&mut self) -> usize {
        match self.next() % 8 {
            0..4 => 1 + self.next() % 8,
            4 | 5 => 16,
            6 => 1 + self.next() % 200,
            _ => 1 + self.next() % 8192,
        }
    }

    /// How many descriptors come with a chunk.
    fn descriptors(&mut self) -> usize {
        match self.next() % 8 {
            0 => 1 + self.next() % MAX_FDS,
            1 => 1,
            _ => 0,
        }
    }
}
