//! The terminal: keys in, screens out; it is restored however the program ends.

use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;

use super::Source;
use super::screen::Screen;
use crate::shared::daemon::Failure;
use crate::shared::daemon::signals::{End, catch};
use crate::shared::kernel::rates::rates;
use crate::shared::output::{self, TextStyle};

/// How soon the thread that reads keys notices that the program has ended.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Restores the terminal when dropped: at a normal end, an error, or a signal. At a panic ratatui's hook restores it
/// earlier, so that the message is visible.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // If the terminal is gone there is nowhere to report it.
        let _ = ratatui::try_restore();
    }
}

/// Events, read by a thread of their own because reading blocks. The channel closes when the terminal is gone.
fn events() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEY_POLL_INTERVAL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let Ok(event) = event else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Shows the screen until the user quits or a signal arrives.
pub(super) async fn run(source: &Source<'_>, delay: Duration, style: TextStyle) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Other(format!("the terminal: {error}"));
    let began = Instant::now();
    let mut end = End::new()?;
    let mut hangup = catch(SignalKind::hangup())?;
    // If the daemon does not answer, the error is printed before the screen is switched.
    let mut before = source.sample(began).await?;
    let mut model = rates(&before, &before);
    let mut screen = Screen::of(source.host.clone(), style);
    let _restored = Restored;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut events = events();
    let after = || async {
        tokio::time::sleep(delay).await;
        source.sample(began).await
    };
    let mut next = Box::pin(after());
    loop {
        let clock = output::time(output::now());
        let clock = clock.get(11..19).unwrap_or_default();
        terminal
            .draw(|frame| screen.draw(&model, clock, frame.area(), frame.buffer_mut()))
            .map_err(failed)?;
        tokio::select! {
            () = end.reached() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            event = events.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if screen.key(key, &model) {
                        return Ok(());
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            },
            sampled = &mut next => {
                match sampled {
                    Ok(now) => {
                        model = rates(&before, &now);
                        before = now;
                        screen.failure.clear();
                    }
                    Err(failure) => screen.failure = failure.to_string(),
                }
                next = Box::pin(after());
            }
        }
    }
}
