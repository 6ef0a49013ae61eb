//! What is done next about kubelet, from what is seen. Times are durations since the program's start.

use std::time::Duration;

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// How long kubelet may take to open its stream after it accepted a registration.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// One file: another one of the same name has another identity, even if the kernel uses its number again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) changed: (i64, i64),
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
    fn another(&mut self, now: Duration) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.count.min(16));
        self.pause_until = now + pause.min(MAX_PAUSE);
        self.count = self.count.saturating_add(1);
    }
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
pub(super) struct Past {
    accepted: Option<Accepted>,
    /// Failures to make the socket.
    socket: Failures,
    /// Failures to register with the kubelet of this socket.
    registering: (Option<FileId>, Failures),
}

impl Past {
    /// Takes note of what is seen.
    pub(super) fn saw(&mut self, seen: &Situation) {
        if let Some(accepted) = &mut self.accepted {
            accepted.watched |= seen.kubelet_watches;
        }
        // A kubelet that was started anew is not to wait because another one failed.
        if seen.kubelet != self.registering.0 {
            self.registering = (seen.kubelet, Failures::default());
        }
    }

    /// The plugin listens on a new socket, which kubelet does not know.
    pub(super) fn socket_made(&mut self) {
        (self.accepted, self.socket) = (None, Failures::default());
    }

    /// The socket could not be made.
    pub(super) fn socket_failed(&mut self, now: Duration) {
        self.socket.another(now);
    }

    /// kubelet accepted the registration.
    pub(super) fn accepted(&mut self, kubelet: FileId, now: Duration) {
        self.accepted = Some(Accepted {
            kubelet,
            at: now,
            watched: false,
        });
    }

    /// kubelet refused, or did not answer.
    pub(super) fn refused(&mut self, now: Duration) {
        self.accepted = None;
        self.registering.1.another(now);
    }

    /// kubelet has no stream any more.
    pub(super) fn lost(&mut self, now: Duration) {
        let lasted = self
            .accepted
            .take()
            .is_some_and(|accepted| now > accepted.at + MAX_PAUSE);
        if lasted {
            self.registering.1 = Failures::default();
        }
        self.registering.1.another(now);
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    MakeSocket,
    Register(FileId),
    /// kubelet accepted the registration and has no stream.
    Lost,
    /// Nothing until something changes, or until this time.
    Wait(Option<Duration>),
}

/// What to do, after [`Past::saw`].
pub(super) fn next(seen: &Situation, past: &Past, now: Duration) -> Next {
    let after_pause = |failures: &Failures, next: Next| match now < failures.pause_until {
        true => Next::Wait(Some(failures.pause_until)),
        false => next,
    };
    if !seen.listening {
        return after_pause(&past.socket, Next::MakeSocket);
    }
    let Some(kubelet) = seen.kubelet else {
        return Next::Wait(None);
    };
    match &past.accepted {
        Some(accepted) if accepted.kubelet == kubelet => {
            let until = accepted.at + STREAM_TIMEOUT;
            match (seen.kubelet_watches, accepted.watched) {
                (true, _) => Next::Wait(None),
                (false, false) if now < until => Next::Wait(Some(until)),
                (false, _) => Next::Lost,
            }
        }
        _ => after_pause(&past.registering.1, Next::Register(kubelet)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubelet(inode: u64) -> FileId {
        FileId {
            device: 1,
            inode,
            changed: (0, 0),
        }
    }

    fn seen(kubelet: Option<FileId>, kubelet_watches: bool) -> Situation {
        Situation {
            listening: true,
            kubelet,
            kubelet_watches,
        }
    }

    fn look(past: &mut Past, seen: &Situation, second: u64) -> Next {
        past.saw(seen);
        next(seen, past, at(second))
    }

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn the_socket_comes_first_then_the_registration_then_the_stream() {
        let mut past = Past::default();
        let absent = Situation {
            listening: false,
            ..seen(Some(kubelet(1)), false)
        };
        assert_eq!(look(&mut past, &absent, 0), Next::MakeSocket);
        past.socket_made();
        assert_eq!(look(&mut past, &seen(None, false), 0), Next::Wait(None));
        let there = seen(Some(kubelet(1)), false);
        assert_eq!(look(&mut past, &there, 1), Next::Register(kubelet(1)));
        past.accepted(kubelet(1), at(1));
        assert_eq!(look(&mut past, &there, 2), Next::Wait(Some(at(11))));
        assert_eq!(look(&mut past, &seen(Some(kubelet(1)), true), 3), Next::Wait(None));
    }

    #[test]
    fn a_kubelet_that_was_started_anew_is_registered_with_at_once() {
        let mut past = Past::default();
        let first = seen(Some(kubelet(1)), false);
        look(&mut past, &first, 0);
        past.accepted(kubelet(1), at(0));
        let again = FileId {
            changed: (9, 9),
            ..kubelet(1)
        };
        assert_eq!(look(&mut past, &seen(Some(again), false), 1), Next::Register(again));
        // Its folder was emptied too.
        let emptied = Situation {
            listening: false,
            ..seen(Some(again), false)
        };
        assert_eq!(look(&mut past, &emptied, 1), Next::MakeSocket);
        past.socket_made();
        assert_eq!(look(&mut past, &seen(Some(again), true), 1), Next::Register(again));
        // Pauses are of one kubelet.
        for _ in 0..9 {
            past.refused(at(1));
        }
        assert_eq!(look(&mut past, &seen(Some(again), false), 2), Next::Wait(Some(at(61))));
        assert_eq!(
            look(&mut past, &seen(Some(kubelet(2)), false), 2),
            Next::Register(kubelet(2))
        );
    }

    #[test]
    fn pauses_grow_to_a_minute() {
        let mut past = Past::default();
        let there = seen(Some(kubelet(1)), false);
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(look(&mut past, &there, now), Next::Register(kubelet(1)));
            past.refused(at(now));
            let Next::Wait(Some(until)) = look(&mut past, &there, now) else {
                panic!("{past:?}")
            };
            pauses.push(until.as_secs() - now);
            now = until.as_secs();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn a_stream_that_ends_or_never_begins_is_a_failure() {
        let mut past = Past::default();
        let there = seen(Some(kubelet(1)), false);
        look(&mut past, &there, 0);
        past.accepted(kubelet(1), at(0));
        assert_eq!(look(&mut past, &there, 10), Next::Lost);
        past.lost(at(10));
        assert_eq!(look(&mut past, &there, 10), Next::Wait(Some(at(11))));
        past.accepted(kubelet(1), at(11));
        look(&mut past, &seen(Some(kubelet(1)), true), 12);
        assert_eq!(look(&mut past, &there, 13), Next::Lost);
        // One that was accepted and ended soon, again and again, is not asked ever more often.
        past.lost(at(13));
        assert_eq!(look(&mut past, &there, 13), Next::Wait(Some(at(15))));
        past.accepted(kubelet(1), at(15));
        past.lost(at(200));
        assert_eq!(look(&mut past, &there, 200), Next::Wait(Some(at(201))));
    }

    #[test]
    fn a_socket_that_cannot_be_made_is_tried_again_after_a_pause_whichever_kubelet_runs() {
        let mut past = Past::default();
        let absent = |kubelet| Situation {
            listening: false,
            ..seen(kubelet, false)
        };
        assert_eq!(look(&mut past, &absent(None), 0), Next::MakeSocket);
        past.socket_failed(at(0));
        assert_eq!(look(&mut past, &absent(Some(kubelet(1))), 0), Next::Wait(Some(at(1))));
        assert_eq!(look(&mut past, &absent(Some(kubelet(2))), 1), Next::MakeSocket);
    }
}
