//! The terminal: keys in, screens out; it is restored however the program ends.

use std::pin::pin;
use std::thread;

use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;

use super::Source;
use super::screen::Screen;
use crate::shared::daemon::Failure;
use crate::shared::daemon::signals::{End, catch};
use crate::shared::kernel::host_name;
use crate::shared::kernel::rates::Model;
use crate::shared::output::{self, TextStyle};

/// Events, read by a thread of their own because reading blocks; it ends with the program. The channel closes when the terminal is gone.
fn events() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Shows the screen, first with this model, until the user quits or a signal arrives. At a panic ratatui's hook restores the terminal, so that the message is
/// visible.
pub(crate) async fn live(source: Source<'_>, model: Model, style: TextStyle) -> Result<String, Failure> {
    let shown = match ratatui::try_init() {
        Ok(terminal) => show(terminal, source, model, style).await,
        Err(error) => Err(failed(&error)),
    };
    // If the terminal is gone there is nowhere to report it.
    let _ = ratatui::try_restore();
    shown.map(|()| String::new())
}

fn failed(error: &std::io::Error) -> Failure {
    Failure::Other(format!("the terminal: {error}"))
}

async fn show(
    mut terminal: DefaultTerminal,
    source: Source<'_>,
    mut model: Model,
    style: TextStyle,
) -> Result<(), Failure> {
    let mut end = End::new()?;
    let mut hangup = catch(SignalKind::hangup())?;
    let mut screen = Screen::of(host_name(&source.roots.proc), style);
    let mut events = events();
    let mut models = pin!(source.models());
    loop {
        let clock = output::time(output::now());
        let clock = clock.get(11..19).unwrap_or_default();
        terminal
            .draw(|frame| screen.draw(&model, clock, frame.area(), frame.buffer_mut()))
            .map_err(|error| failed(&error))?;
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
            Some(sampled) = models.next() => match sampled {
                Ok(now) => {
                    model = now;
                    screen.failure.clear();
                }
                Err(failure) => screen.failure = failure.to_string(),
            },
        }
    }
}
