//! What is under way on a connection: calls, and signals that are being written.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::stream::rest_of_header;

/// Calls of a connection that may be unanswered; until one of them is answered nothing more is read. zbus starts a task for
/// each call that it is given, so without this limit a peer could have any number of commands in the engine's queue.
pub(super) const MAX_UNANSWERED_CALLS: usize = 4;
/// A connection on which nothing is under way rests after this long. A client's next call follows on the last answer at once
/// or after seconds, and of those that connect in a row few are to be awake at the same time.
const IDLE_BEFORE_REST: Duration = Duration::from_millis(5);
/// A connection that was woken less than this ago rests after as long a time again: for a peer that calls all the time
/// zbus's part is not built anew for each call.
const REPEATED_WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// What is under way on one connection.
#[derive(Debug, Default)]
pub(super) struct Calls {
    state: Mutex<State>,
    /// Wakes the connection's one reader, which waits for one condition at a time.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Calls that were passed on and not answered.
    unanswered: usize,
    /// Whether any call was ever answered.
    answered: bool,
    /// Messages that answer no call and are being written.
    telling: usize,
    resting: bool,
    /// When it began to rest last.
    rested: Option<Instant>,
    woken_soon: bool,
}

impl State {
    /// Whether zbus has nothing in hand that concerns this connection. Before the first answer it holds what it is to tell.
    fn is_quiet(&self) -> bool {
        self.answered && self.unanswered == 0 && self.telling == 0
    }
}

/// A message that answers no call is being written, until this is dropped.
#[derive(Debug)]
pub struct SignalWrite<'a>(&'a Calls);

impl Calls {
    pub(super) fn began(&self, calls: u32) {
        let calls = usize::try_from(calls).unwrap_or(usize::MAX);
        self.lock().unanswered += calls;
    }

    pub(super) fn ended(&self, answers: usize) {
        if answers == 0 {
            return;
        }
        let mut state = self.lock();
        // No answer is written without a call; if one were, it must not make room for more calls.
        state.unanswered = state.unanswered.saturating_sub(answers);
        state.answered = true;
        drop(state);
        // The permit stays where the one reader does not wait yet, so no answer is missed.
        self.changed.notify_one();
    }

    /// Wait until there is room for one more.
    pub(super) async fn room(&self) {
        self.until(|state| !state.resting && state.unanswered < MAX_UNANSWERED_CALLS)
            .await;
    }

    /// Begin to write a message that answers no call; `None` while the connection rests.
    pub(super) fn tell(&self) -> Option<SignalWrite<'_>> {
        let mut state = self.lock();
        if state.resting {
            return None;
        }
        state.telling += 1;
        Some(SignalWrite(self))
    }

    /// Wait until nothing was under way for a while; the connection rests then. For its reader, while it has nothing in hand:
    /// no call begins meanwhile, and what is to be told from then on finds the connection resting.
    pub(super) async fn rest(&self) {
        loop {
            self.until(State::is_quiet).await;
            let quiet = if self.lock().woken_soon {
                REPEATED_WAKE_INTERVAL
            } else {
                IDLE_BEFORE_REST
            };
            tokio::time::sleep(quiet).await;
            let mut state = self.lock();
            if state.is_quiet() {
                state.resting = true;
                state.rested = Some(Instant::now());
                return;
            }
        }
    }

    pub(super) fn is_resting(&self) -> bool {
        self.lock().resting
    }

    pub(super) fn wake(&self) {
        let mut state = self.lock();
        state.resting = false;
        state.woken_soon = state
            .rested
            .take()
            .is_some_and(|rested| rested.elapsed() < REPEATED_WAKE_INTERVAL);
        drop(state);
        self.changed.notify_one();
    }

    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        while !is_so(&self.lock()) {
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters only: they are consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SignalWrite<'_> {
    fn drop(&mut self) {
        self.0.lock().telling -= 1;
        self.0.changed.notify_one();
    }
}

/// The outbound byte stream, followed message by message however writes are cut.
#[derive(Debug, Default)]
pub(super) struct Answers {
    header: [u8; 16],
    got: usize,
    /// Bytes to come of the message that was begun.
    remaining: u64,
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
                self.remaining = rest_of_header(&self.header);
            }
            let take = usize::try_from(self.remaining).map_or(bytes.len(), |remaining| remaining.min(bytes.len()));
            self.remaining -= take as u64;
            bytes = &bytes[take..];
            if self.remaining == 0 {
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
        let wait = tokio::time::timeout(Duration::from_millis(20), calls.room());
        assert!(wait.await.is_err());
        let (room, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(5), calls.room()), async {
            calls.ended(1)
        });
        assert!(room.is_ok());
        calls.ended(100);
        calls.room().await;
    }

    #[tokio::test]
    async fn a_connection_rests_when_nothing_is_under_way_and_not_before_its_first_answer() {
        let calls = Calls::default();
        let rests = async || tokio::time::timeout(IDLE_BEFORE_REST * 10, calls.rest()).await.is_ok();
        assert!(!rests().await);
        calls.began(2);
        calls.ended(1);
        assert!(!rests().await);
        calls.ended(1);
        let telling = calls.tell();
        assert!(telling.is_some() && !rests().await);
        drop(telling);
        assert!(rests().await && calls.is_resting());
        // From then on nothing is told and nothing read until it is awake.
        assert!(calls.tell().is_none());
        assert!(tokio::time::timeout(IDLE_BEFORE_REST, calls.room()).await.is_err());
        calls.wake();
        calls.room().await;
        assert!(calls.tell().is_some());
        // A connection that was just woken does not rest at once.
        assert!(!rests().await);
        calls.rest().await;
        tokio::time::sleep(REPEATED_WAKE_INTERVAL).await;
        calls.wake();
        assert!(rests().await);
    }
}
