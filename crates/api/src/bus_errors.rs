//! The named errors `io.stelia.Isolation1.Error.*`. `busctl` prints only the text, so every text stands alone.

use zbus::DBusError;
use zbus::message::{Header, Message};
use zbus::names::ErrorName;

use crate::{Error, ErrorKind};

impl DBusError for Error {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, self.name()).build(&self.to_string())
    }

    fn name(&self) -> ErrorName<'_> {
        ErrorName::from_static_str_unchecked(self.kind.error_name())
    }

    fn description(&self) -> Option<&str> {
        Some(&self.text)
    }
}

/// A failure of the transport itself.
impl From<zbus::Error> for Error {
    fn from(error: zbus::Error) -> Self {
        ErrorKind::Failed.because(error.to_string())
    }
}
