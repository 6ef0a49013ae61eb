//! The inbound byte stream, followed byte by byte: the handshake of the D-Bus specification, then messages.

/// Most bytes before BEGIN. A client's whole handshake is under 200.
pub const MAX_HANDSHAKE: usize = 4 << 10;
/// Longest message. AttachVcpus for 480 vCPUs with their properties is under 100 KiB.
pub const MAX_MESSAGE: usize = 256 << 10;
/// Most descriptors in one message. A call of a runner has one.
pub const MAX_FDS: usize = 4;
/// So many bytes cost a pod as much as one message more: what it may keep the daemon holding is bounded with its calls.
pub const BYTES_A_CALL: usize = 8 << 10;

/// Message type and flag of the D-Bus specification, "Message Format".
const METHOD_CALL: u8 = 1;
const NO_REPLY_EXPECTED: u8 = 1;
/// Where the flags are in a message's header.
const FLAGS: usize = 2;

/// Why the gate closes a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// The first byte is not NUL.
    #[error("the first byte is {0:#04x}, not NUL")]
    NotNul(u8),
    /// A line feed without a carriage return before it.
    #[error("a line feed without a carriage return in the handshake")]
    BareLineFeed,
    /// The handshake does not end.
    #[error("more than {MAX_HANDSHAKE} bytes before BEGIN")]
    HandshakeTooLong,
    /// Descriptors before authentication.
    #[error("descriptors before BEGIN")]
    FdsBeforeBegin,
    /// A message's first byte is neither `l` nor `B`.
    #[error("a message begins with {0:#04x}")]
    BadEndian(u8),
    /// A message is too long.
    #[error("a message of {0} bytes, more than {MAX_MESSAGE}")]
    MessageTooLong(u64),
    /// A message has too many descriptors.
    #[error("more than {MAX_FDS} descriptors in a message")]
    TooManyFds,
    /// A message does not end.
    #[error("a message that does not end")]
    MessageTooSlow,
    /// Too many connections, of this pod or in all.
    #[error("too many connections")]
    TooManyConnections,
}

#[derive(Debug)]
enum State {
    /// Before BEGIN: bytes so far, and the line being read.
    Handshake {
        seen: usize,
        line: Vec<u8>,
    },
    Header {
        got: usize,
        buffer: [u8; 16],
    },
    Body {
        left: usize,
        is_call: bool,
    },
}

/// What a chunk of the stream held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// What the messages that began in it cost: one each, of whatever type, and one for every [`BYTES_A_CALL`].
    pub cost: u32,
    /// Method calls that ended in it.
    pub calls: u32,
}

/// One connection's inbound stream.
#[derive(Debug)]
pub struct Stream {
    state: State,
    pending_fds: usize,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            state: State::Handshake {
                seen: 0,
                line: Vec::new(),
            },
            pending_fds: 0,
        }
    }
}

impl Stream {
    /// A stream between two messages.
    pub(super) fn between_messages() -> Self {
        Self {
            state: header(),
            pending_fds: 0,
        }
    }

    /// Whether the handshake has not ended.
    pub fn is_handshake(&self) -> bool {
        matches!(self.state, State::Handshake { .. })
    }

    /// Whether a message, or the handshake, has begun and not ended.
    pub fn is_within_message(&self) -> bool {
        !matches!(self.state, State::Header { got: 0, .. })
    }

    /// Follow what one `recvmsg` gave.
    ///
    /// The flag NO_REPLY_EXPECTED is taken from method calls: such a call would never be seen to end, and so would escape
    /// the count of those under way. Every call is answered; a peer ignores an answer that it does not expect.
    ///
    /// # Errors
    /// What the peer did wrong: the connection must be closed and nothing of the bytes passed on.
    pub fn follow(&mut self, bytes: &mut [u8], fds: usize) -> Result<Passed, GateError> {
        let mut passed = Passed::default();
        let mut ended = false;
        self.pending_fds += fds;
        if self.pending_fds > MAX_FDS {
            return Err(GateError::TooManyFds);
        }
        let mut bytes = bytes;
        while let Some(&first) = bytes.first() {
            let taken = match &mut self.state {
                State::Handshake { seen, line } => {
                    if handshake(seen, line, first)? {
                        self.state = header();
                    }
                    1
                }
                State::Header { got, buffer } => {
                    let before = *got;
                    let take = (16 - before).min(bytes.len());
                    buffer[before..before + take].copy_from_slice(&bytes[..take]);
                    *got += take;
                    // The first byte decides at once: no time is spent on a stream that is not D-Bus.
                    if !matches!(buffer[0], b'l' | b'B') {
                        return Err(GateError::BadEndian(buffer[0]));
                    }
                    let is_call = buffer[1] == METHOD_CALL;
                    if is_call && let Some(flags) = FLAGS.checked_sub(before).and_then(|at| bytes[..take].get_mut(at)) {
                        *flags &= !NO_REPLY_EXPECTED;
                    }
                    if *got == 16 {
                        let left = rest_of_message(buffer)?;
                        passed.cost += 1 + u32::try_from(left / BYTES_A_CALL).unwrap_or(u32::MAX);
                        self.state = State::Body { left, is_call };
                    }
                    take
                }
                State::Body { left, .. } => {
                    let take = (*left).min(bytes.len());
                    *left -= take;
                    take
                }
            };
            bytes = &mut std::mem::take(&mut bytes)[taken..];
            if let State::Body { left: 0, is_call } = self.state {
                ended = true;
                passed.calls += u32::from(is_call);
                self.state = header();
            }
        }
        // Descriptors come with the bytes of their message; a chunk may end the handshake and begin a message.
        if fds > 0 && matches!(self.state, State::Handshake { .. }) {
            return Err(GateError::FdsBeforeBegin);
        }
        if ended {
            // Those of this chunk may be the next message's, where one has begun.
            self.pending_fds = if self.is_within_message() { fds } else { 0 };
        }
        Ok(passed)
    }

    /// The same where only the cost matters.
    ///
    /// # Errors
    /// As [`Self::follow`].
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn feed(&mut self, bytes: &[u8], fds: usize) -> Result<u32, GateError> {
        self.follow(&mut bytes.to_vec(), fds).map(|passed| passed.cost)
    }
}

fn header() -> State {
    State::Header {
        got: 0,
        buffer: [0; 16],
    }
}

/// One byte of the handshake; true when it ends the BEGIN line.
fn handshake(seen: &mut usize, line: &mut Vec<u8>, byte: u8) -> Result<bool, GateError> {
    *seen += 1;
    if *seen == 1 {
        return if byte == 0 {
            Ok(false)
        } else {
            Err(GateError::NotNul(byte))
        };
    }
    if *seen > MAX_HANDSHAKE {
        return Err(GateError::HandshakeTooLong);
    }
    if byte != b'\n' {
        line.push(byte);
        return Ok(false);
    }
    if line.pop() != Some(b'\r') {
        return Err(GateError::BareLineFeed);
    }
    let begin = line == b"BEGIN";
    line.clear();
    Ok(begin)
}

/// Bytes that follow the 16 of the fixed header: the fields, padded to 8, and the body.
pub(super) fn rest_of_header(buffer: &[u8; 16]) -> u64 {
    let (fields, body) = lengths(buffer);
    fields + body
}

/// How many bytes follow the 16 of the fixed header: those of the fields, padded to 8, and those of the body.
pub(in crate::dbus) fn lengths(buffer: &[u8; 16]) -> (u64, u64) {
    let number = |at: usize| {
        let bytes = [buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]];
        u64::from(if buffer[0] == b'B' {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    };
    (number(12).next_multiple_of(8), number(4))
}

/// The same of a message that may come in.
fn rest_of_message(buffer: &[u8; 16]) -> Result<usize, GateError> {
    let rest = rest_of_header(buffer);
    match usize::try_from(rest) {
        Ok(rest) if rest + 16 <= MAX_MESSAGE => Ok(rest),
        _ => Err(GateError::MessageTooLong(rest + 16)),
    }
}
