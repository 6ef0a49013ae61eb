//! Signals before the first answer to a peer.

/// How many signals wait for the first answer; with one more all are written.
const MAX_QUEUED_SIGNALS: usize = 64;

/// The beginning of a connection, seen from its writing end.
///
/// An object that is there already is announced as soon as it is served, which may be before the answer to a client's
/// `Hello`. sd-bus (busctl and every client of libsystemd) takes any message before that for a broken connection, so signals
/// wait until the first call is answered. A peer that never calls gets no signals, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    held: Vec<u8>,
    count: usize,
    over: bool,
}

/// What is to be done with something that is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Write it.
    Now,
    /// Take it for written: it is kept.
    Later,
    /// Write it, and then what was kept.
    Before(Vec<u8>),
    /// Write what was kept, and then it.
    After(Vec<u8>),
}

impl Greeting {
    /// The state of a connection whose first call was answered before.
    pub(super) fn over() -> Self {
        Self {
            over: true,
            ..Self::default()
        }
    }

    /// `bytes` is a whole message, a line of the handshake, or, once the greeting is over, anything.
    pub(super) fn offer(&mut self, bytes: &[u8]) -> Outgoing {
        // D-Bus specification, message format: byte order, then type: 2 and 3 answer a call, 4 is a signal.
        match bytes {
            _ if self.over => Outgoing::Now,
            [b'l' | b'B', 4, ..] if self.count < MAX_QUEUED_SIGNALS => {
                self.held.extend_from_slice(bytes);
                self.count += 1;
                Outgoing::Later
            }
            [b'l' | b'B', 4, ..] => Outgoing::After(self.end()),
            [b'l' | b'B', 2 | 3, ..] => Outgoing::Before(self.end()),
            _ => Outgoing::Now,
        }
    }

    fn end(&mut self) -> Vec<u8> {
        self.over = true;
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_wait_for_the_first_answer() {
        let mut greeting = Greeting::default();
        assert_eq!(greeting.offer(b"OK 0123\r\n"), Outgoing::Now);
        assert_eq!(greeting.offer(b"l\x04one"), Outgoing::Later);
        assert_eq!(greeting.offer(b"l\x04two"), Outgoing::Later);
        assert_eq!(
            greeting.offer(b"l\x02answer"),
            Outgoing::Before(b"l\x04onel\x04two".into())
        );
        assert_eq!(greeting.offer(b"l\x04three"), Outgoing::Now);
        assert_eq!(greeting.offer(b"l\x02answer"), Outgoing::Now);
    }

    #[test]
    fn an_error_is_an_answer_too() {
        let mut greeting = Greeting::default();
        assert_eq!(greeting.offer(b"B\x03error"), Outgoing::Before(Vec::new()));
        assert_eq!(greeting.offer(b"l\x04one"), Outgoing::Now);
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let mut greeting = Greeting::default();
        assert!((0..MAX_QUEUED_SIGNALS).all(|_| greeting.offer(b"l\x04") == Outgoing::Later));
        assert_eq!(
            greeting.offer(b"l\x04last"),
            Outgoing::After(b"l\x04".repeat(MAX_QUEUED_SIGNALS))
        );
        assert_eq!(greeting.offer(b"l\x04"), Outgoing::Now);
    }
}
