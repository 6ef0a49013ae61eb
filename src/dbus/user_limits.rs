//! How much the users of the host may ask on the system bus, so that none of them can use up the daemon's time, memory or descriptors, or the
//! answers that the bus lets its connection wait for (`max_replies_per_connection`, 128). Root has its own bound.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use stelia_api::{Error, ErrorKind};

use super::rate::{Bucket, Rate};
use super::runner_gate::stream::{BYTES_A_CALL, MAX_FDS};

/// Calls of one user that are being answered.
const CALLS_OF_A_USER: usize = 8;
/// Calls of all users but root that are being answered.
const CALLS_OF_USERS: usize = 64;
/// Calls of root that are being answered.
const CALLS_OF_ROOT: usize = 256;
/// Bytes of one user's calls that are being answered. What a call's arguments take in memory is several times as large.
const BYTES_OF_A_USER: usize = 512 << 10;
/// Bytes of the calls of all users but root that are being answered.
const BYTES_OF_USERS: usize = 2 << 20;
/// What a user may call, and what all but root may: calls a second, and at once. A long message counts as several calls, and so does one
/// whose answer has all instances.
const RATE_OF_A_USER: Rate = Rate {
    a_second: 50.0,
    burst: 200.0,
};
const RATE_OF_USERS: Rate = Rate {
    a_second: 200.0,
    burst: 800.0,
};
/// Each so many instances in an answer cost as much as one more call.
const INSTANCES_PER_CALL: u32 = 8;
/// How many users are remembered. Beyond it, users without calls whose bucket is full are forgotten.
const MAX_USERS: usize = 256;
/// Calls whose answers have every instance.
const OF_ALL_INSTANCES: [&str; 2] = ["GetManagedObjects", "ListInstances"];
/// Calls that come with descriptors.
const WITH_DESCRIPTORS: [&str; 2] = ["RegisterInstance", "AttachVcpus"];

/// The limits of one entry point.
#[derive(Debug)]
pub(super) struct UserLimits {
    root: AtomicU32,
    instances: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    users: HashMap<u32, User>,
    /// All but root.
    all: User,
}

#[derive(Debug)]
struct User {
    rate: Bucket,
    calls: usize,
    bytes: usize,
}

impl User {
    fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate: Bucket::full(rate, now),
            calls: 0,
            bytes: 0,
        }
    }

    fn has_room(&self, calls: usize, bytes: usize, more: usize) -> bool {
        self.calls < calls && (self.calls == 0 || self.bytes + more <= bytes)
    }
}

/// A call that is being answered, until this is dropped.
#[derive(Debug)]
pub(super) struct CallUnderWay {
    limits: Arc<UserLimits>,
    user: u32,
    bytes: usize,
}

/// A message of a caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) member: &'a str,
    pub(super) bytes: usize,
    pub(super) descriptors: usize,
}

impl UserLimits {
    pub(super) fn new(root: u32) -> Arc<Self> {
        let state = State {
            users: HashMap::new(),
            all: User::new(RATE_OF_USERS, Instant::now()),
        };
        Arc::new(Self {
            root: root.into(),
            instances: AtomicU32::new(0),
            state: Mutex::new(state),
        })
    }

    pub(super) fn is_root(&self, user: u32) -> bool {
        user == self.root.load(Ordering::Relaxed)
    }

    pub(super) fn set_root(&self, root: u32) {
        self.root.store(root, Ordering::Relaxed);
    }

    /// The number of instances, by which calls that list all of them are charged.
    pub(super) fn set_instances(&self, instances: usize) {
        let instances = u32::try_from(instances).unwrap_or(u32::MAX);
        self.instances.store(instances, Ordering::Relaxed);
    }

    /// Whether a message may be passed on, and count it.
    ///
    /// # Errors
    /// It has descriptors that nobody asked for, or the user calls too often.
    pub(super) fn pass(&self, user: u32, message: Message<'_>, now: Instant) -> Result<(), Error> {
        let Message {
            member,
            bytes,
            descriptors,
        } = message;
        if descriptors > MAX_FDS || (descriptors > 0 && !WITH_DESCRIPTORS.contains(&member)) {
            return Err(ErrorKind::InvalidArgument.because(format!(
                "{member} came with {descriptors} descriptors: RegisterInstance and AttachVcpus take at most {MAX_FDS}, others none"
            )));
        }
        if self.is_root(user) {
            return Ok(());
        }
        let mut cost = 1 + u32::try_from(bytes / BYTES_A_CALL).unwrap_or(u32::MAX);
        if OF_ALL_INSTANCES.contains(&member) {
            cost = cost.saturating_add(self.instances.load(Ordering::Relaxed) / INSTANCES_PER_CALL);
        }
        let mut state = self.lock();
        let State { users, all } = &mut *state;
        if users.len() >= MAX_USERS {
            users.retain(|_, user| user.calls > 0 || !user.rate.is_full(RATE_OF_A_USER, now));
        }
        let own = users.entry(user).or_insert_with(|| User::new(RATE_OF_A_USER, now));
        if !own.rate.wait(RATE_OF_A_USER, now).is_zero() {
            return Err(busy(format!("user {user} calls too often: try again later")));
        }
        if !all.rate.wait(RATE_OF_USERS, now).is_zero() {
            return Err(busy("the users of this host call too often".to_owned()));
        }
        own.rate.spend(cost, RATE_OF_A_USER, now);
        all.rate.spend(cost, RATE_OF_USERS, now);
        Ok(())
    }

    /// Begin to answer a call.
    ///
    /// # Errors
    /// The user, or all users, have too many or too large calls under way.
    pub(super) fn begin(self: &Arc<Self>, user: u32, bytes: usize, now: Instant) -> Result<CallUnderWay, Error> {
        let mut state = self.lock();
        let State { users, all } = &mut *state;
        let own = users.entry(user).or_insert_with(|| User::new(RATE_OF_A_USER, now));
        if self.is_root(user) {
            if own.calls >= CALLS_OF_ROOT {
                return Err(busy(format!("{CALLS_OF_ROOT} calls of root are being answered")));
            }
        } else {
            if !own.has_room(CALLS_OF_A_USER, BYTES_OF_A_USER, bytes) {
                return Err(busy(format!("earlier calls of user {user} are still being answered")));
            }
            if !all.has_room(CALLS_OF_USERS, BYTES_OF_USERS, bytes) {
                return Err(busy(
                    "earlier calls of the users of this host are still being answered".to_owned(),
                ));
            }
            all.calls += 1;
            all.bytes += bytes;
        }
        own.calls += 1;
        own.bytes += bytes;
        Ok(CallUnderWay {
            limits: self.clone(),
            user,
            bytes,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters only: they are consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        let mut state = self.limits.lock();
        let State { users, all } = &mut *state;
        let own = users.get_mut(&self.user);
        let all = (!self.limits.is_root(self.user)).then_some(all);
        for counted in own.into_iter().chain(all) {
            counted.calls = counted.calls.saturating_sub(1);
            counted.bytes = counted.bytes.saturating_sub(self.bytes);
        }
    }
}

fn busy(text: String) -> Error {
    ErrorKind::Busy.because(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SMALL: Message<'_> = Message {
        member: "Describe",
        bytes: 100,
        descriptors: 0,
    };

    fn kind<T>(answer: Result<T, Error>) -> Option<ErrorKind> {
        answer.err().map(|error| error.kind)
    }

    #[test]
    fn one_users_calls_leave_others_and_root_theirs() {
        let (limits, now) = (UserLimits::new(0), Instant::now());
        let one: Vec<_> = (0..CALLS_OF_A_USER)
            .map(|_| limits.begin(1000, 100, now).unwrap())
            .collect();
        assert_eq!(kind(limits.begin(1000, 100, now)), Some(ErrorKind::Busy));
        let another = limits.begin(1001, 100, now).unwrap();
        let root: Vec<_> = (0..CALLS_OF_ROOT)
            .map(|_| limits.begin(0, 1 << 20, now).unwrap())
            .collect();
        assert_eq!(kind(limits.begin(0, 0, now)), Some(ErrorKind::Busy));
        drop((one, another, root));
        assert!(limits.begin(1000, 100, now).is_ok());
        // One call may be larger than what a user may have, but it is alone.
        let large = limits.begin(1000, BYTES_OF_A_USER * 2, now).unwrap();
        assert_eq!(kind(limits.begin(1000, 1, now)), Some(ErrorKind::Busy));
        drop(large);
        // Many users together have a bound, too, and root has none of it.
        let all: Vec<_> = (0..CALLS_OF_USERS as u32 * 2)
            .map(|user| limits.begin(1 + user, 1, now))
            .collect();
        assert_eq!(all.iter().filter(|one| one.is_ok()).count(), CALLS_OF_USERS);
        assert!(limits.begin(0, 1, now).is_ok());
        drop(all);
        assert_eq!(limits.lock().all.calls, 0);
    }

    #[test]
    fn whoever_calls_too_often_is_told_and_root_is_not() {
        let (limits, now) = (UserLimits::new(0), Instant::now());
        let passed = |user, message, now| {
            (0..10_000)
                .take_while(|_| limits.pass(user, message, now).is_ok())
                .count()
        };
        let burst = passed(1000, SMALL, now);
        assert!((200..250).contains(&burst), "{burst}");
        assert_eq!(passed(0, SMALL, now), 10_000);
        assert!(passed(1001, SMALL, now) > 100);
        // With all instances in the answer a call is dearer, and so is a long one.
        limits.set_instances(512);
        assert!(passed(1000, SMALL, now + Duration::from_secs(3600)) > 100);
        let list = Message {
            member: "GetManagedObjects",
            ..SMALL
        };
        assert!(passed(1000, list, now + Duration::from_secs(7200)) < 10);
        let long = Message {
            bytes: 1 << 20,
            ..SMALL
        };
        assert!(passed(1000, long, now + Duration::from_secs(10800)) < 5);
    }

    #[test]
    fn descriptors_are_for_calls_that_have_some() {
        let (limits, now) = (UserLimits::new(0), Instant::now());
        for (member, descriptors, refused) in [
            ("AttachVcpus", 1, None),
            ("RegisterInstance", MAX_FDS, None),
            ("RegisterInstance", MAX_FDS + 1, Some(ErrorKind::InvalidArgument)),
            ("NodeTopology", 1, Some(ErrorKind::InvalidArgument)),
        ] {
            for user in [0, 1000] {
                let message = Message {
                    member,
                    descriptors,
                    ..SMALL
                };
                assert_eq!(kind(limits.pass(user, message, now)), refused, "{member} {descriptors}");
            }
        }
    }

    #[test]
    fn idle_users_are_forgotten() {
        let (limits, now) = (UserLimits::new(0), Instant::now());
        for user in 1..10_000 {
            let _ = limits.pass(user, SMALL, now + Duration::from_secs(user.into()));
        }
        assert!(limits.lock().users.len() <= MAX_USERS);
    }
}
