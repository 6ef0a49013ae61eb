//! The terminal: keys in, screens out, and everything as it was at the end, however that comes.

use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;

use super::super::client::{Client, Failure};
use super::super::signals::until;
use super::super::threads::Roots;
use super::super::view;
use super::rates::{Model, rates};
use super::screen::{Flow, Screen};
use super::{Pace, sample};

/// How soon the thread that reads keys notices that nobody wants them.
const TURN: Duration = Duration::from_millis(200);

/// Puts the terminal back when it goes: at a normal end, an error, or a signal. At a panic ratatui's hook is first, so that
/// the message is seen.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // Nowhere to tell when the terminal is gone.
        let _ = ratatui::try_restore();
    }
}

/// Events from a thread of their own: reading them blocks. `None` behind them: the terminal is gone.
fn events() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(TURN) {
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

/// Shows it until a person quits, a signal comes, or it was drawn anew `count` times.
pub(super) async fn run(client: &Client, roots: &Roots, Pace { count, delay }: Pace) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Other(format!("the terminal: {error}"));
    let began = Instant::now();
    let mut terminate = until(SignalKind::terminate())?;
    let mut interrupt = until(SignalKind::interrupt())?;
    let mut hangup = until(SignalKind::hangup())?;
    // A daemon that is not there is told on the terminal as it is.
    let mut before = sample(client, roots, began).await?;
    let mut model = rates(&before, &before);
    let mut screen = Screen {
        coloured: view::coloured(),
        ..Screen::default()
    };
    let _restored = Restored;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut events = events();
    let mut updates = 0;
    let after = || async {
        tokio::time::sleep(delay).await;
        sample(client, roots, began).await
    };
    let mut next = Box::pin(after());
    loop {
        let mut area = Rect::default();
        let draw = |model: &Model, screen: &Screen, area: &mut Rect, frame: &mut ratatui::Frame<'_>| {
            *area = frame.area();
            screen.draw(model, *area, frame.buffer_mut());
        };
        terminal
            .draw(|frame| draw(&model, &screen, &mut area, frame))
            .map_err(failed)?;
        if count.is_some_and(|count| updates >= count) {
            return Ok(());
        }
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            event = events.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    let count = screen.rows(&model).len();
                    if screen.key(key, count, usize::from(area.width)) == Flow::Quit {
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
                        screen.problem.clear();
                    }
                    Err(failure) => screen.problem = failure.to_string(),
                }
                updates += 1;
                next = Box::pin(after());
            }
        }
    }
}
