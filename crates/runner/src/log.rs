//! The runner's messages, one line each: text or JSON.

use std::io::{self, Write};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::cli::LogFormat;

pub(crate) fn start(format: LogFormat) {
    let variable = std::env::var("RUST_LOG").ok();
    let filter = variable.and_then(|text| text.parse::<Targets>().ok());
    let default = || {
        Targets::new()
            .with_default(LevelFilter::INFO)
            .with_target("zbus", LevelFilter::WARN)
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| OneLine)
        .with_ansi(false)
        .with_target(false);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
    };
    let registry = tracing_subscriber::registry().with(filter.unwrap_or_else(default));
    let started = registry.with(lines).try_init();
    if let Err(error) = started {
        eprintln!("start logging: {error}");
    }
}

/// Standard error.
#[derive(Debug)]
struct OneLine;

impl Write for OneLine {
    /// The subscriber writes a message in one call, and so does this, so that lines of several processes do not mix.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&one_line(message))?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The message as one line: line ends in it, which an error's text may have, are escaped as `\n` and `\r`.
fn one_line(message: &[u8]) -> Vec<u8> {
    let body = message.strip_suffix(b"\n").unwrap_or(message);
    let mut line = Vec::with_capacity(message.len() + 1);
    for byte in body {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            other => line.push(*other),
        }
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_line() {
        assert_eq!(one_line(b"a\n"), b"a\n");
        assert_eq!(one_line(b"a"), b"a\n");
        assert_eq!(one_line(b"a\nb\r\n\n"), b"a\\nb\\r\\n\n");
    }
}
