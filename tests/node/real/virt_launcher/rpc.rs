//! virt-handler's side of virt-launcher's command socket: gRPC's unary calls, each on a connection of its own. Only what these calls
//! need of HTTP/2 is here: this crate has no gRPC, and a call that fails in any other way fails the test.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Limit of a call. virt-handler waits 20 s; this node is emulated.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Limit of a frame's payload, and so of a request.
const MAX_FRAME_BYTES: usize = 16_384;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames, and flags.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn new(kind: u8, flags: u8, stream: u32, payload: Vec<u8>) -> Self {
        Self {
            kind,
            flags,
            stream,
            payload,
        }
    }

    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        assert!(self.payload.len() <= MAX_FRAME_BYTES, "{} bytes", self.payload.len());
        let length = u32::try_from(self.payload.len()).map_err(io::Error::other)?;
        to.write_all(&length.to_be_bytes()[1..])?;
        to.write_all(&[self.kind, self.flags])?;
        to.write_all(&self.stream.to_be_bytes())?;
        to.write_all(&self.payload)
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        from.read_exact(&mut payload)?;
        Ok(Self::new(kind, flags, u32::from_be_bytes(stream), payload))
    }
}

/// The command socket of a launcher.
pub struct Socket(PathBuf);

impl Socket {
    pub fn new(socket: PathBuf) -> Self {
        Self(socket)
    }

    /// virt-launcher gives the socket this name when it is ready.
    pub fn is_there(&self) -> bool {
        UnixStream::connect(&self.0).is_ok()
    }

    /// A call that virt-launcher answers with success, or its message.
    pub fn call(&self, method: &str, request: &[u8]) -> Result<(), String> {
        let started = Instant::now();
        let answer = self.exchange(method, request);
        let answer = answer.unwrap_or_else(|error| panic!("{method} on {}: {error}", self.0.display()));
        let (is_success, message) = response(&answer);
        let took = started.elapsed().as_millis();
        println!("  {method}: success {is_success} {message:?}, after {took} ms");
        if is_success { Ok(()) } else { Err(message) }
    }

    /// The answer's message, without gRPC's prefix.
    fn exchange(&self, method: &str, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&self.0)?;
        stream.set_read_timeout(Some(CALL_TIMEOUT))?;
        stream.write_all(PREFACE)?;
        Frame::new(SETTINGS, 0, 0, vec![]).write(&mut stream)?;
        Frame::new(HEADERS, END_HEADERS, 1, headers(method)).write(&mut stream)?;
        let length = u32::try_from(request.len()).map_err(io::Error::other)?;
        let message = [&[0], &length.to_be_bytes()[..], request].concat();
        Frame::new(DATA, END_STREAM, 1, message).write(&mut stream)?;
        let mut answer = Vec::new();
        loop {
            let frame = Frame::read(&mut stream)?;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => Frame::new(SETTINGS, ACK, 0, vec![]).write(&mut stream)?,
                PING if frame.flags & ACK == 0 => Frame::new(PING, ACK, 0, frame.payload).write(&mut stream)?,
                RESET | GO_AWAY => return Err(io::Error::other(format!("refused: {:?}", frame.payload))),
                DATA => answer.extend(frame.payload),
                _ => {}
            }
            if frame.stream == 1 && matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
                break;
            }
        }
        match answer.len() {
            0..5 => Err(io::Error::other("an answer without a message")),
            _ => Ok(answer.split_off(5)),
        }
    }
}

/// The headers of a call, as literals that are in no table.
fn headers(method: &str) -> Vec<u8> {
    let path = format!("/kubevirt.cmd.v1.Cmd/{method}");
    let all = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", &path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in all {
        block.push(0);
        for text in [name, value] {
            // Longer ones have another form.
            assert!(text.len() < 127, "{text}");
            block.extend(u8::try_from(text.len()));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// The fields of `Response`: `success` and `message`.
fn response(message: &[u8]) -> (bool, String) {
    let (mut is_success, mut text) = (false, String::new());
    let mut rest = message;
    while let [tag, after @ ..] = rest {
        let (value, after) = number(after);
        rest = after;
        match tag {
            0x08 => is_success = value != 0,
            0x12 => {
                let (bytes, after) = rest.split_at(value);
                text = String::from_utf8_lossy(bytes).into_owned();
                rest = after;
            }
            _ => panic!("not a Response: {message:?}"),
        }
    }
    (is_success, text)
}

/// A number of protobuf's, and what follows it.
fn number(bytes: &[u8]) -> (usize, &[u8]) {
    let length = 1 + bytes.iter().take_while(|byte| **byte & 0x80 != 0).count();
    let (own, rest) = bytes.split_at(length);
    let value = own
        .iter()
        .rev()
        .fold(0, |sum, byte| (sum << 7) | usize::from(byte & 0x7f));
    (value, rest)
}

/// A field of protobuf's that has a length: a message, bytes, a text or packed numbers.
pub fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![(number << 3) | 2];
    let mut length = content.len();
    while length > 0x7f {
        bytes.extend(u8::try_from((length & 0x7f) | 0x80));
        length >>= 7;
    }
    bytes.extend(u8::try_from(length));
    bytes.extend_from_slice(content);
    bytes
}
