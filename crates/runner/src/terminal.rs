//! The terminal on standard input. QEMU makes it raw (`-nographic`, `-serial mon:stdio`) and restores it when it ends by
//! itself. When QEMU is killed, the runner restores it, or the shell would not echo.

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// The terminal's settings; `None` where standard input is not a terminal.
#[derive(Debug)]
pub(crate) struct Terminal(Option<Termios>);

impl Terminal {
    pub(crate) fn save() -> Terminal {
        Terminal(tcgetattr(std::io::stdin()).ok())
    }

    pub(crate) fn restore(&self) {
        if let Some(settings) = &self.0
            && let Err(error) = tcsetattr(std::io::stdin(), OptionalActions::Now, settings)
        {
            tracing::debug!("restore the terminal: {error}");
        }
    }
}
