//! A timer with one wake-up. The runtime sorts its own timers coarsely while they are far away, and wakes to sort them again: three
//! times in half a minute.

use std::io;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// A timer of the kernel's (timerfd_create(2)), made when it is first needed; while the kernel gives none, the runtime's.
#[derive(Default)]
pub(super) struct Timer {
    /// The runtime's type for pipes serves a timer too: it is polled, and read without blocking.
    timer: Option<Receiver>,
    set: Option<Instant>,
}

fn make() -> io::Result<Receiver> {
    let timer = timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )?;
    Receiver::from_owned_fd_unchecked(timer)
}

impl Timer {
    /// Sleep until then. The future may be dropped, and another time asked for.
    pub(super) async fn until(&mut self, when: Instant) {
        if let Err(cause) = self.expire(when).await {
            tracing::debug!("set a timer: {cause}");
            tokio::time::sleep_until(when.into()).await;
        }
    }

    async fn expire(&mut self, when: Instant) -> io::Result<()> {
        let timer = match &mut self.timer {
            Some(timer) => timer,
            none => none.insert(make()?),
        };
        if self.set != Some(when) {
            // 0 would stop the timer.
            let wait = when
                .saturating_duration_since(Instant::now())
                .max(Duration::from_nanos(1));
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
            let time = Itimerspec {
                it_interval: none,
                it_value: wait,
            };
            timerfd_settime(&*timer, TimerfdTimerFlags::empty(), &time)?;
            self.set = Some(when);
        }
        loop {
            timer.readable().await?;
            match timer.try_read(&mut [0u8; 8]) {
                // The timer was set again after it had expired.
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => continue,
                read => read?,
            };
            self.set = None;
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_expires_at_the_time_that_was_set_last_and_not_before() {
        let mut timer = Timer::default();
        let began = Instant::now();
        tokio::select! {
            biased;
            _ = timer.until(began + Duration::from_millis(20)) => panic!("it expires at once"),
            () = std::future::ready(()) => {}
        }
        // It has expired by then, while nothing waited for it.
        tokio::time::sleep(Duration::from_millis(40)).await;
        let then = Instant::now() + Duration::from_millis(50);
        timer.until(then).await;
        assert!(Instant::now() >= then);
        // A time that is past is now.
        timer.until(began).await;
    }
}
