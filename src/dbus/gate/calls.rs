//! How many calls of a connection are under way.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::stream::rest_of_header;

/// Calls of a connection that may be unanswered; until one of them is answered nothing more is read. zbus starts a task for
/// each call that it is given, so whoever is not held back here has as many commands in the engine's queue as it likes.
pub(super) const OUTSTANDING: usize = 4;

/// The calls of one connection that were passed on and not answered.
#[derive(Debug, Default)]
pub(super) struct Calls {
    unanswered: AtomicUsize,
    answered: Notify,
}

impl Calls {
    /// Calls were passed on.
    pub(super) fn began(&self, calls: u32) {
        let calls = usize::try_from(calls).unwrap_or(usize::MAX);
        self.unanswered.fetch_add(calls, Ordering::SeqCst);
    }

    /// Answers went out.
    pub(super) fn ended(&self, answers: usize) {
        if answers == 0 {
            return;
        }
        // An answer that nobody asked for is not written; were one, it must not buy room for others.
        let less = |calls: usize| Some(calls.saturating_sub(answers));
        let _ = self.unanswered.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        // The permit stays where the one reader does not wait yet, so no answer is missed.
        self.answered.notify_one();
    }

    /// Wait until there is room for one more.
    pub(super) async fn room(&self) {
        while self.unanswered.load(Ordering::SeqCst) >= OUTSTANDING {
            self.answered.notified().await;
        }
    }
}

/// The outbound byte stream, followed message by message however writes are cut.
#[derive(Debug, Default)]
pub(super) struct Answers {
    header: [u8; 16],
    got: usize,
    left: u64,
}

impl Answers {
    /// Follow bytes that were written; answers how many method returns and errors ended in them.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> usize {
        let mut answers = 0;
        while let Some(first) = bytes.first() {
            // Lines of the handshake are written whole, and none begins as a message does.
            if self.got == 0 && !matches!(first, b'l' | b'B') {
                return answers;
            }
            if self.got < 16 {
                let take = (16 - self.got).min(bytes.len());
                self.header[self.got..self.got + take].copy_from_slice(&bytes[..take]);
                self.got += take;
                bytes = &bytes[take..];
                if self.got < 16 {
                    return answers;
                }
                self.left = rest_of_header(&self.header);
            }
            let take = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            self.left -= take as u64;
            bytes = &bytes[take..];
            if self.left == 0 {
                self.got = 0;
                // D-Bus specification, message format: 2 is a method return, 3 an error.
                answers += usize::from(matches!(self.header[1], 2 | 3));
            }
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::message;
    use super::*;

    proptest! {
        #[test]
        fn answers_are_counted_however_writes_are_cut(
            kinds in proptest::collection::vec((1u8..5, 0u32..50), 0..12),
            cuts in proptest::collection::vec(1usize..40, 0..60),
        ) {
            let mut answers = Answers::default();
            prop_assert_eq!(answers.follow(b"OK 0123456789abcdef\r\n"), 0);
            let bytes: Vec<u8> = kinds.iter().flat_map(|(kind, body)| message(*kind, *body)).collect();
            let (mut rest, mut counted) = (bytes.as_slice(), 0);
            for cut in cuts {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                counted += answers.follow(chunk);
                rest = after;
            }
            counted += answers.follow(rest);
            prop_assert_eq!(counted, kinds.iter().filter(|(kind, _)| matches!(kind, 2 | 3)).count());
        }
    }

    #[tokio::test]
    async fn there_is_room_again_when_an_answer_went_out() {
        let calls = Calls::default();
        calls.began(4);
        let wait = tokio::time::timeout(std::time::Duration::from_millis(20), calls.room());
        assert!(wait.await.is_err());
        let (room, ()) = tokio::join!(
            tokio::time::timeout(std::time::Duration::from_secs(5), calls.room()),
            async { calls.ended(1) }
        );
        assert!(room.is_ok());
        calls.ended(100);
        calls.room().await;
    }
}
