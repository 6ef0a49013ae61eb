use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use stelia_api::quiet::Irqbalance;

use super::*;
use crate::order::OrderedVm;

const SHORT: Duration = Duration::from_millis(200);

fn listening() -> (tempfile::TempDir, PathBuf, UnixListener) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quiet.sock");
    let listener = UnixListener::bind(&path).unwrap();
    (folder, path, listener)
}

/// What the order became with a peer that does this to the one connection it gets.
fn with(
    peer: impl FnOnce(UnixStream) + Send + 'static,
    order_: &Order,
    timeout: Duration,
) -> Result<Report, OrderError> {
    let (_folder, path, listener) = listening();
    let peer = thread::spawn(move || peer(listener.accept().unwrap().0));
    let result = order(&path, order_, timeout);
    peer.join().unwrap();
    result
}

fn answering(answer: impl Into<Vec<u8>>) -> impl FnOnce(UnixStream) + Send + 'static {
    let answer = answer.into();
    move |mut stream| {
        socket_line::read(&mut stream, MAX_LINE, ANSWER_TIMEOUT).unwrap();
        let _ = stream.write_all(&answer);
    }
}

#[test]
fn an_order_is_one_line_and_the_report_comes_back() {
    let wanted = Order {
        steer: true,
        shared: "0-1".parse().unwrap(),
        vms: [("b9e4".to_owned(), OrderedVm::default())].into(),
        ..Order::default()
    };
    let expected = wanted.clone();
    let report = Report {
        interrupts: 3,
        irqbalance: Irqbalance::Informed,
        ..Report::default()
    };
    let answer = serde_json::to_string(&OrderAnswer::Done(report.clone())).unwrap();
    let peer = move |mut stream: UnixStream| {
        let text = socket_line::read(&mut stream, MAX_LINE, ANSWER_TIMEOUT).unwrap();
        assert_eq!(
            serde_json::from_str::<Request>(&text).unwrap(),
            Request::Order(expected)
        );
        socket_line::write(&mut stream, &answer, ANSWER_TIMEOUT).unwrap();
    };
    assert_eq!(with(peer, &wanted, ANSWER_TIMEOUT).unwrap(), report);
}

#[test]
fn each_way_to_fail_has_its_name() {
    let any = Order::default();
    let fails = |answer: &[u8]| with(answering(answer), &any, ANSWER_TIMEOUT).unwrap_err();
    let refused = fails(b"{\"refused\":\"CPU 3 is nobody's\"}\n");
    assert_eq!(refused.to_string(), "the order was refused: CPU 3 is nobody's");
    let garbled = fails(b"no\n");
    assert!(garbled.to_string().starts_with("the answer \"no\" is"), "{garbled}");
    let half = fails(b"{\"done\":");
    assert!(matches!(half, OrderError::NoAnswer(LineError::Closed)), "{half}");
    let bytes = fails(b"\xff\n");
    assert!(matches!(bytes, OrderError::NoAnswer(LineError::NotText)), "{bytes}");
    let long = fails(&vec![b' '; MAX_LINE + 1]);
    assert!(matches!(long, OrderError::NoAnswer(LineError::TooLong(_))), "{long}");
    let closed = with(drop, &any, ANSWER_TIMEOUT).unwrap_err();
    assert!(
        matches!(
            closed,
            OrderError::NoAnswer(LineError::Closed) | OrderError::Write(LineError::Closed)
        ),
        "{closed}"
    );
}

#[test]
fn nothing_listens_where_there_is_no_socket_or_nobody_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quiet.sock");
    for _ in 0..2 {
        let error = order(&path, &Order::default(), ANSWER_TIMEOUT).unwrap_err();
        assert!(matches!(error, OrderError::NothingListens { .. }), "{error}");
        drop(UnixListener::bind(&path));
    }
}

#[test]
fn a_peer_that_hangs_or_trickles_is_waited_for_no_longer_than_was_said() {
    let hangs = |mut stream: UnixStream| drop(stream.read_to_end(&mut Vec::new()));
    let error = with(hangs, &Order::default(), SHORT).unwrap_err();
    assert!(matches!(error, OrderError::NoAnswer(LineError::TimedOut(_))), "{error}");
    let trickles = |mut stream: UnixStream| {
        while stream.write_all(b" ").is_ok() {
            thread::sleep(SHORT / 10);
        }
    };
    let error = with(trickles, &Order::default(), SHORT).unwrap_err();
    assert!(matches!(error, OrderError::NoAnswer(LineError::TimedOut(_))), "{error}");
}

#[test]
fn a_listener_that_accepts_nobody_is_not_waited_for_either() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quiet.sock");
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let _waits = UnixStream::connect(&path).unwrap();
    let error = order(&path, &Order::default(), SHORT).unwrap_err();
    assert!(
        matches!(&error, OrderError::Connect { cause, .. } if cause.kind() == io::ErrorKind::TimedOut),
        "{error}"
    );
}

#[test]
fn an_order_that_would_be_refused_for_its_length_is_not_sent() {
    let vm = OrderedVm {
        own_devices: [" ".repeat(MAX_LINE)].into(),
        ..OrderedVm::default()
    };
    let order_ = Order {
        vms: [("a".to_owned(), vm)].into(),
        ..Order::default()
    };
    let error = order(Path::new("/nonexistent"), &order_, ANSWER_TIMEOUT).unwrap_err();
    assert!(
        matches!(error, OrderError::TooLong(length) if length > MAX_LINE),
        "{error}"
    );
}

/// What asking became with a peer that answers this.
fn asked<T>(answer: &str, ask: impl FnOnce(&Path) -> Result<T, OrderError>) -> (String, Result<T, OrderError>) {
    let (_folder, path, listener) = listening();
    let answer = answer.to_owned();
    let peer = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let text = socket_line::read(&mut stream, MAX_LINE, ANSWER_TIMEOUT).unwrap();
        socket_line::write(&mut stream, &answer, ANSWER_TIMEOUT).unwrap();
        text
    });
    let result = ask(&path);
    (peer.join().unwrap(), result)
}

#[test]
fn an_attribution_is_begun_and_finished_in_a_line_each() {
    let target = Target {
        cpus: "2-3".parse().unwrap(),
        own: [7].into(),
        by_thread: false,
    };
    let (line, result) = asked("\"begun\"", |path| begin(path, &target, ANSWER_TIMEOUT));
    result.unwrap();
    assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), Request::Begin(target));
    let counted = Attribution {
        cpus: "2-3".into(),
        dropped: 1,
        ..Attribution::default()
    };
    let answer = serde_json::to_string(&OrderAnswer::Attributed(counted.clone())).unwrap();
    let (line, result) = asked(&answer, |path| finish(path, &BTreeSet::new(), ANSWER_TIMEOUT));
    assert_eq!((line.as_str(), result.unwrap()), ("{\"finish\":{}}", counted));
}

#[test]
fn an_answer_to_something_else_is_none_and_a_refusal_says_why() {
    let (_, result) = asked("\"begun\"", |path| finish(path, &BTreeSet::new(), ANSWER_TIMEOUT));
    let text = result.unwrap_err().to_string();
    assert_eq!(text, "the answer \"begun\" does not answer what was asked");
    let refused = "{\"refused\":\"it is not JSON that is understood: unknown field `attribute`\"}";
    let (_, result) = asked(refused, |path| begin(path, &Target::default(), ANSWER_TIMEOUT));
    assert!(matches!(result, Err(OrderError::Refused(_))), "{result:?}");
}

#[test]
fn a_count_whose_beginning_is_not_answered_is_ended() {
    let (_folder, path, listener) = listening();
    let peer = thread::spawn(move || {
        let asked = |stream: &mut UnixStream| socket_line::read(stream, MAX_LINE, ANSWER_TIMEOUT).unwrap();
        let mut slow = listener.accept().unwrap().0;
        let begun = asked(&mut slow);
        // Kept open until the other one came.
        let ended = asked(&mut listener.accept().unwrap().0);
        (begun, ended)
    });
    let error = begin(&path, &Target::default(), SHORT).unwrap_err();
    assert!(matches!(error, OrderError::NoAnswer(LineError::TimedOut(_))), "{error}");
    let (begun, ended) = peer.join().unwrap();
    assert!(begun.contains("begin") && ended.contains("finish"), "{begun} {ended}");
}
