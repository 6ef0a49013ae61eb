//! What is done next about kubelet, from what is seen. Times are durations since the program's start.

use std::time::Duration;

/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The shortest pause after a stream of kubelet's has ended. What kubelet does about the end of the old stream, such as that it forgets the
/// resource's devices, is done before the new registration by then.
const MIN_PAUSE_AFTER_STREAM: Duration = Duration::from_secs(1);

/// How long kubelet may take to open its stream after it accepted a registration.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// One file: another one of the same name has another identity, even if the kernel uses its number again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// When it was made, in seconds and nanoseconds; where its file system does not know that, when it was last changed.
    pub(super) time: (i64, i64),
}

/// What is seen of the folder and of the connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Situation {
    /// The plugin's socket is in its place.
    pub(super) listening: bool,
    /// kubelet's socket.
    pub(super) kubelet: Option<FileId>,
    /// kubelet has a stream of the plugin's devices.
    pub(super) kubelet_watches: bool,
}

/// The failures since the last success.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Failures {
    count: u32,
    /// Nothing is tried before this.
    pause_until: Duration,
}

impl Failures {
    fn another(&mut self, now: Duration, least: Duration) {
        self.pause_until = now + pause(self.count).max(least);
        self.count = self.count.saturating_add(1);
    }
}

/// The pause after so many failures in a row: 100, 200, 400 ms, because the pods of a node that starts wait for the plugin, then 1 s and twice as
/// long each time.
fn pause(failures_before: u32) -> Duration {
    let pause = match failures_before {
        0..=2 => Duration::from_millis(100 << failures_before),
        more => Duration::from_secs(1 << (more - 3).min(16)),
    };
    pause.min(MAX_PAUSE)
}

/// A registration that kubelet accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Accepted {
    kubelet: FileId,
    at: Duration,
    /// kubelet opened a stream since.
    watched: bool,
}

/// What was done before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct History {
    accepted: Option<Accepted>,
    /// Failures with the kubelet of this socket.
    failures: (Option<FileId>, Failures),
}

impl History {
    /// Takes note of what is seen.
    pub(super) fn saw(&mut self, seen: &Situation) {
        if let Some(accepted) = &mut self.accepted {
            accepted.watched |= seen.kubelet_watches;
        }
        // A kubelet that was started anew is not to wait because another one failed.
        if seen.kubelet != self.failures.0 {
            self.failures = (seen.kubelet, Failures::default());
        }
    }

    /// kubelet accepted the registration.
    pub(super) fn accepted(&mut self, kubelet: FileId, now: Duration) {
        self.accepted = Some(Accepted {
            kubelet,
            at: now,
            watched: false,
        });
    }

    /// The plugin's socket could not be made, or kubelet refused or did not answer.
    pub(super) fn failed(&mut self, now: Duration) {
        self.accepted = None;
        self.failures.1.another(now, Duration::ZERO);
    }

    /// kubelet has no stream any more, or opened none, or the plugin's socket is gone.
    pub(super) fn stream_ended(&mut self, now: Duration) {
        let lasted = self
            .accepted
            .take()
            .is_some_and(|accepted| now > accepted.at + MAX_PAUSE);
        if lasted {
            self.failures.1 = Failures::default();
        }
        self.failures.1.another(now, MIN_PAUSE_AFTER_STREAM);
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Register a new socket with this kubelet.
    Register(FileId),
    /// kubelet accepted the registration and has no stream, or will have no other one, because the plugin's socket is gone.
    StreamEnded,
    /// Nothing until something changes, or until this time.
    Wait(Option<Duration>),
}

/// What to do, after [`History::saw`].
pub(super) fn next(seen: &Situation, history: &History, now: Duration) -> Next {
    let Some(kubelet) = seen.kubelet else {
        return Next::Wait(None);
    };
    match &history.accepted {
        Some(accepted) if accepted.kubelet == kubelet => {
            let until = accepted.at + STREAM_TIMEOUT;
            match (seen.kubelet_watches, accepted.watched) {
                _ if !seen.listening => Next::StreamEnded,
                (true, _) => Next::Wait(None),
                (false, false) if now < until => Next::Wait(Some(until)),
                (false, _) => Next::StreamEnded,
            }
        }
        _ if now < history.failures.1.pause_until => Next::Wait(Some(history.failures.1.pause_until)),
        _ => Next::Register(kubelet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubelet(inode: u64) -> FileId {
        FileId {
            device: 1,
            inode,
            time: (0, 0),
        }
    }

    fn seen(kubelet: Option<FileId>, kubelet_watches: bool) -> Situation {
        Situation {
            listening: true,
            kubelet,
            kubelet_watches,
        }
    }

    fn look(history: &mut History, seen: &Situation, now: Duration) -> Next {
        history.saw(seen);
        next(seen, history, now)
    }

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn the_plugin_registers_once_kubelets_socket_is_there_and_then_waits_for_the_stream() {
        let mut history = History::default();
        let absent = Situation {
            listening: false,
            ..seen(None, false)
        };
        assert_eq!(look(&mut history, &absent, at(0)), Next::Wait(None));
        let there = seen(Some(kubelet(1)), false);
        assert_eq!(look(&mut history, &there, at(1)), Next::Register(kubelet(1)));
        history.accepted(kubelet(1), at(1));
        assert_eq!(look(&mut history, &there, at(2)), Next::Wait(Some(at(11))));
        assert_eq!(
            look(&mut history, &seen(Some(kubelet(1)), true), at(3)),
            Next::Wait(None)
        );
    }

    #[test]
    fn a_kubelet_that_was_started_anew_is_registered_with_at_once() {
        let mut history = History::default();
        look(&mut history, &seen(Some(kubelet(1)), false), at(0));
        history.accepted(kubelet(1), at(0));
        let again = FileId {
            time: (9, 9),
            ..kubelet(1)
        };
        assert_eq!(
            look(&mut history, &seen(Some(again), true), at(1)),
            Next::Register(again)
        );
        // Its folder was emptied too.
        let emptied = Situation {
            listening: false,
            ..seen(Some(again), false)
        };
        assert_eq!(look(&mut history, &emptied, at(1)), Next::Register(again));
        // Pauses are of one kubelet.
        for _ in 0..12 {
            history.failed(at(1));
        }
        assert_eq!(
            look(&mut history, &seen(Some(again), false), at(2)),
            Next::Wait(Some(at(61)))
        );
        assert_eq!(
            look(&mut history, &seen(Some(kubelet(2)), false), at(2)),
            Next::Register(kubelet(2))
        );
    }

    #[test]
    fn pauses_begin_short_and_grow_to_a_minute() {
        let mut history = History::default();
        let there = seen(Some(kubelet(1)), false);
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_eq!(look(&mut history, &there, now), Next::Register(kubelet(1)));
            history.failed(now);
            let Next::Wait(Some(until)) = look(&mut history, &there, now) else {
                panic!("{history:?}")
            };
            pauses.push((until - now).as_millis());
            now = until;
        }
        let expected = [
            100, 200, 400, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000,
        ];
        assert_eq!(pauses, expected);
    }

    #[test]
    fn a_stream_that_ends_or_never_begins_is_a_failure_with_a_pause_of_at_least_1_s() {
        let mut history = History::default();
        let there = seen(Some(kubelet(1)), false);
        look(&mut history, &there, at(0));
        history.accepted(kubelet(1), at(0));
        assert_eq!(look(&mut history, &there, at(10)), Next::StreamEnded);
        history.stream_ended(at(10));
        assert_eq!(look(&mut history, &there, at(10)), Next::Wait(Some(at(11))));
        history.accepted(kubelet(1), at(11));
        look(&mut history, &seen(Some(kubelet(1)), true), at(12));
        assert_eq!(look(&mut history, &there, at(13)), Next::StreamEnded);
        // One that was accepted and ended soon, again and again, is not asked ever more often.
        for second in 13..17 {
            history.stream_ended(at(second));
        }
        assert_eq!(look(&mut history, &there, at(16)), Next::Wait(Some(at(18))));
        history.accepted(kubelet(1), at(20));
        history.stream_ended(at(200));
        assert_eq!(look(&mut history, &there, at(200)), Next::Wait(Some(at(201))));
    }

    #[test]
    fn a_socket_that_somebody_removed_is_registered_anew() {
        let mut history = History::default();
        look(&mut history, &seen(Some(kubelet(1)), false), at(0));
        history.accepted(kubelet(1), at(0));
        let removed = Situation {
            listening: false,
            ..seen(Some(kubelet(1)), true)
        };
        assert_eq!(look(&mut history, &removed, at(5)), Next::StreamEnded);
        history.stream_ended(at(5));
        assert_eq!(look(&mut history, &removed, at(5)), Next::Wait(Some(at(6))));
        assert_eq!(look(&mut history, &removed, at(6)), Next::Register(kubelet(1)));
    }
}
