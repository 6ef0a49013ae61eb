//! The terminal on standard input. QEMU makes it raw (`-nographic`, `-serial mon:stdio`) and puts it back when it ends by
//! itself; one that is killed does not, and leaves a shell that shows nothing.

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// A terminal's settings; nothing where standard input is none.
#[derive(Debug)]
pub struct Terminal(Option<Termios>);

impl Terminal {
    /// As they are now.
    pub fn save() -> Terminal {
        Terminal(tcgetattr(std::io::stdin()).ok())
    }

    /// As they were.
    pub fn restore(&self) {
        if let Some(settings) = &self.0
            && let Err(error) = tcsetattr(std::io::stdin(), OptionalActions::Now, settings)
        {
            tracing::debug!("restore the terminal: {error}");
        }
    }
}
