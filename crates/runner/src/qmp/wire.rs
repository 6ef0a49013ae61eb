//! The QMP protocol: JSON objects, one per line. Answers carry the id of their command; events come at any time.
//!
//! Only the end of the connection and a message above `MAX_MESSAGE_BYTES` are errors. An unknown event or field, an answer to a
//! command whose caller was cancelled, and a line that is not an object are skipped. Each of these ends qapi's own stream,
//! which is why it is not used (the tests below, and `docs/decisions.md`); what is sent is qapi's `Execute`.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use qapi::{Command, Execute};
use serde_json::{Map, Value};
use tokio::net::UnixStream;

use super::commands::Capabilities;
use super::lines::Lines;

/// Limit of a message, in bytes; 8192 vCPUs with all their properties take 3 MB.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Limit of the queued events. The oldest are dropped beyond it.
const MAX_EVENTS: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// `RESET`, `DEVICE_DELETED`…
    pub name: String,
    /// An object; null when the event has no data.
    pub data: Value,
}

#[derive(Debug, PartialEq)]
enum Message {
    Greeting,
    Event(Event),
    /// The answer to the command with this id: the result, or QEMU's error text.
    Answer(u64, Result<Value, String>),
    Unknown,
}

/// A connection after capabilities negotiation.
#[derive(Debug)]
pub(crate) struct Wire {
    lines: Lines,
    events: VecDeque<Event>,
    next: u64,
}

impl Wire {
    fn new(stream: UnixStream) -> Wire {
        Wire {
            lines: Lines::new(stream, MAX_MESSAGE_BYTES),
            events: VecDeque::new(),
            next: 0,
        }
    }

    /// Connects and negotiates. QEMU greets when its main loop runs, which is after all guest memory was allocated, and only
    /// one client at a time.
    pub(crate) async fn open(socket: &Path) -> io::Result<Wire> {
        let mut wire = Wire::new(UnixStream::connect(socket).await?);
        while wire.message().await? != Message::Greeting {}
        match wire.execute(Capabilities {}).await? {
            Ok(_) => Ok(wire),
            Err(text) => Err(io::Error::new(io::ErrorKind::InvalidData, text)),
        }
    }

    /// The outer error ends the connection, the inner one is QEMU's answer.
    pub(crate) async fn execute<C: Command>(&mut self, command: C) -> io::Result<Result<Value, String>> {
        self.next += 1;
        let number = self.next;
        let mut line = serde_json::to_vec(&Execute::with_id(command, number))?;
        line.push(b'\n');
        self.lines.write(&line).await?;
        loop {
            match self.message().await? {
                Message::Answer(of, answer) if of == number => return Ok(answer),
                Message::Event(event) => self.queue(event),
                // Another id: its caller was cancelled while it waited.
                _ => {}
            }
        }
    }

    /// The next event. Cancel-safe.
    pub(crate) async fn event(&mut self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Message::Event(event) = self.message().await? {
                return Ok(event);
            }
        }
    }

    fn queue(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Cancel-safe, as [`Lines::next`] is.
    async fn message(&mut self) -> io::Result<Message> {
        self.lines.next().await.map(|line| parse_message(&line))
    }
}

fn parse_message(line: &[u8]) -> Message {
    let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else {
        return Message::Unknown;
    };
    if object.contains_key("QMP") {
        return Message::Greeting;
    }
    if let Some(Value::String(name)) = object.remove("event") {
        let data = object.remove("data").unwrap_or_default();
        return Message::Event(Event { name, data });
    }
    let Some(number) = object.get("id").and_then(Value::as_u64) else {
        return Message::Unknown;
    };
    match result(&mut object) {
        Some(result) => Message::Answer(number, result),
        None => Message::Unknown,
    }
}

/// The result of a command, or the error's text; `None` if the message is no answer.
pub(super) fn result(message: &mut Map<String, Value>) -> Option<Result<Value, String>> {
    if let Some(value) = message.remove("return") {
        return Some(Ok(value));
    }
    let error = message.remove("error")?;
    let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
    Some(Err(format!("{}: {}", text("class"), text("desc"))))
}

#[cfg(test)]
mod tests {
    use super::super::commands::QueryStatus;
    use super::*;
    use qapi::futures::QmpStreamTokio;
    use rstest::rstest;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixListener;

    #[rstest]
    #[case("")]
    #[case("null")]
    #[case("[1,2]")]
    #[case("{}")]
    #[case("{\"event\":7}")]
    #[case("{\"return\":{}}")]
    #[case("{\"return\":{},\"id\":\"text\"}")]
    #[case("{\"return\":{},\"id\":-1}")]
    #[case("{\"id\":1}")]
    #[case("\u{0}\u{1}")]
    #[case("{\"return\":")]
    fn what_is_not_understood_is_noise(#[case] line: &str) {
        assert_eq!(parse_message(line.as_bytes()), Message::Unknown);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_odd(line: Vec<u8>) {
            let _ = parse_message(&line);
        }
    }

    #[test]
    fn an_error_without_words_is_an_error() {
        assert_eq!(
            parse_message(br#"{"error":[],"id":4}"#),
            Message::Answer(4, Err("?: ?".into()))
        );
    }

    /// A QEMU that greets and answers the n-th command with the n-th of `answers`, as it stands.
    async fn wire<const N: usize>(dir: &Path, answers: [&'static str; N]) -> io::Result<Wire> {
        let path = dir.join("q");
        let listener = UnixListener::bind(&path)?;
        tokio::spawn(async move {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            stream
                .write_all(b"{\"event\":\"EARLY\"}\n{\"QMP\":{}}\n")
                .await
                .unwrap();
            for answer in answers {
                stream.read_line(&mut String::new()).await.unwrap();
                // Byte by byte: a message may come in any number of pieces.
                for byte in answer.bytes() {
                    stream.write_all(&[byte]).await.unwrap();
                }
            }
        });
        Wire::open(&path).await
    }

    const READY: &str = "{\"return\":{},\"id\":1}\n";

    #[tokio::test]
    async fn events_noise_and_strangers_answers_do_not_disturb_an_answer() {
        let dir = tempfile::tempdir().unwrap();
        let answer = "{\"event\":\"NEW_IN_QEMU_99\",\"data\":{\"x\":[1]}}\nrubbish\n{\"return\":5,\"id\":77}\n{\"return\":6,\"id\":2}\n";
        let mut wire = wire(dir.path(), [READY, answer]).await.unwrap();
        assert_eq!(wire.execute(QueryStatus {}).await.unwrap(), Ok(6.into()));
        assert_eq!(wire.event().await.unwrap().name, "NEW_IN_QEMU_99");
        // The end of the connection is reported as such.
        let error = wire.event().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn an_asker_that_leaves_spoils_nothing_for_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let late =
            "{\"return\":\"late\",\"id\":2}\n{\"error\":{\"class\":\"GenericError\",\"desc\":\"no\"},\"id\":3}\n";
        let mut wire = wire(dir.path(), [READY, "", late]).await.unwrap();
        let short = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(short, wire.execute(QueryStatus {})).await.is_err());
        assert_eq!(
            wire.execute(QueryStatus {}).await.unwrap(),
            Err("GenericError: no".into())
        );
    }

    #[tokio::test]
    async fn a_refused_negotiation_is_no_connection() {
        let dir = tempfile::tempdir().unwrap();
        let refusal = "{\"error\":{\"class\":\"C\",\"desc\":\"D\"},\"id\":1}\n";
        let error = wire(dir.path(), [refusal]).await.unwrap_err();
        assert_eq!(error.to_string(), "C: D");
    }

    /// QEMU 11.1's greeting, then these words, then an event that qapi's generated types know.
    async fn qemu_says(words: &str) -> UnixStream {
        let (mut qemu, client) = UnixStream::pair().unwrap();
        let version = r#"{"qemu":{"micro":0,"minor":1,"major":11},"package":""}"#;
        let greeting = format!(r#"{{"QMP":{{"version":{version},"capabilities":["oob"]}}}}"#);
        qemu.write_all(format!("{greeting}\n{words}\n{RESUME_EVENT}\n").as_bytes())
            .await
            .unwrap();
        client
    }

    const RESUME_EVENT: &str = r#"{"event":"RESUME","data":{},"timestamp":{"seconds":1,"microseconds":1}}"#;

    /// Why the socket is not read with the crate's own stream. If that some day reads on to the end of the connection,
    /// it can be used.
    #[rstest]
    #[case::an_event_that_it_knows(RESUME_EVENT, true)]
    #[case::an_event_of_a_newer_qemu(r#"{"event":"NEW_IN_QEMU_99","timestamp":{"seconds":1,"microseconds":1}}"#, false)]
    #[case::an_answer_whose_asker_has_left(r#"{"return":{},"id":77}"#, false)]
    #[case::an_error_of_another_class(r#"{"error":{"class":"NewInQemu99","desc":"no"},"id":1}"#, false)]
    #[tokio::test]
    async fn what_ends_qapis_stream_does_not_end_ours(#[case] words: &str, #[case] goes_on: bool) {
        let opened = QmpStreamTokio::open(qemu_says(words).await).await.unwrap();
        let (_service, events) = opened.stream.into_parts();
        // As the crate runs it in the background: until the end of the connection, or an error.
        assert_eq!(events.await.is_ok(), goes_on);

        let mut wire = Wire::new(qemu_says(words).await);
        assert_eq!(wire.message().await.unwrap(), Message::Greeting);
        while wire.event().await.unwrap().name != "RESUME" {}
    }
}
