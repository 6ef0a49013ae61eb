use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use proptest::prelude::*;
use rstest::rstest;
use tokio::sync::Semaphore;
use zbus::connection::Builder;
use zbus::message::Flags;
use zbus::{Connection, Fd, Guid, Message, MessageStream};

use super::stream::{GateError, MAX_FDS, MAX_HANDSHAKE, Stream};
use super::*;

impl Default for Gate {
    /// For pods whose names are not known.
    fn default() -> Self {
        Self::naming(|_| None)
    }
}

/// What sd-bus sends in one write.
const HANDSHAKE: &[u8] = b"\0AUTH EXTERNAL\r\nDATA\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n";

pub(super) fn message(kind: u8, body: u32) -> Vec<u8> {
    let mut bytes = vec![b'l', kind, 0, 1];
    bytes.extend(body.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(5u32.to_le_bytes());
    bytes.extend(vec![0; 8 + body as usize]);
    bytes
}

proptest! {
    #[test]
    fn how_the_bytes_are_cut_does_not_matter(cuts in proptest::collection::vec(1usize..40, 0..60)) {
        let mut bytes = HANDSHAKE.to_vec();
        for (kind, body) in [(1, 0), (2, 100), (1, 33)] {
            bytes.extend(message(kind, body));
        }
        let mut stream = Stream::default();
        let mut cost = 0;
        let mut rest = bytes.as_slice();
        for cut in cuts {
            let (chunk, after) = rest.split_at(cut.min(rest.len()));
            cost += stream.feed(chunk, 0).unwrap();
            rest = after;
        }
        cost += stream.feed(rest, 0).unwrap();
        prop_assert_eq!(cost, 3);
    }
}

#[rstest]
#[case(b"\n", GateError::NotNul(b'\n'))]
#[case(b"AUTH", GateError::NotNul(b'A'))]
#[case(b"\0AUTH\n", GateError::BareLineFeed)]
#[case(b"\0\n", GateError::BareLineFeed)]
fn a_bad_handshake_is_refused_at_the_byte(#[case] bytes: &[u8], #[case] error: GateError) {
    assert_eq!(Stream::default().feed(bytes, 0), Err(error));
}

#[test]
fn a_message_costs_by_its_size_and_whatever_its_type() {
    let cost = |kind, body| {
        let mut stream = Stream::default();
        stream.feed(HANDSHAKE, 0).unwrap();
        stream.feed(&message(kind, body), 0).unwrap()
    };
    assert_eq!((cost(1, 0), cost(4, 0), cost(1, 100 << 10)), (1, 1, 13));
}

#[test]
fn begin_counts_only_as_a_whole_line() {
    let mut stream = Stream::default();
    stream.feed(b"\0AUTH BEGIN\r\nXBEGIN\r\n", 0).unwrap();
    // Still the handshake: descriptors are refused.
    assert_eq!(stream.feed(b"AUTH", 1), Err(GateError::FdsBeforeBegin));
}

#[test]
fn a_handshake_without_end_is_cut_at_its_bound() {
    let mut stream = Stream::default();
    stream.feed(b"\0", 0).unwrap();
    assert_eq!(stream.feed(&[b'x'; MAX_HANDSHAKE], 0), Err(GateError::HandshakeTooLong));
}

#[test]
fn after_begin_length_endianness_and_descriptors_are_bounded() {
    let begun = || {
        let mut stream = Stream::default();
        stream.feed(HANDSHAKE, 0).unwrap();
        stream
    };
    let huge = [b'l', 1, 0, 1, 0, 0, 0x80, 7, 1, 0, 0, 0, 0, 0, 0, 0];
    assert!(matches!(begun().feed(&huge, 0), Err(GateError::MessageTooLong(_))));
    assert_eq!(begun().feed(b"GET", 0), Err(GateError::BadEndian(b'G')));
    assert_eq!(begun().feed(b"l", MAX_FDS + 1), Err(GateError::TooManyFds));
    // Descriptors that may be those of a message just begun are counted with it.
    let mut between = begun();
    let two = [message(1, 0).as_slice(), b"l"].concat();
    between.feed(&two, MAX_FDS).unwrap();
    assert_eq!(between.feed(&[1], 1), Err(GateError::TooManyFds));
    let mut dripping = begun();
    dripping.feed(&[b'l', 1], MAX_FDS).unwrap();
    assert_eq!(dripping.feed(&[0], 1), Err(GateError::TooManyFds));
}

/// Serves two methods; one of them ends when it is let.
#[derive(Clone)]
struct Echo {
    began: Arc<AtomicUsize>,
    may_end: Arc<Semaphore>,
}

impl Default for Echo {
    fn default() -> Self {
        Self {
            began: Arc::default(),
            may_end: Arc::new(Semaphore::new(0)),
        }
    }
}

#[zbus::interface(name = "io.stelia.Test")]
impl Echo {
    async fn wait(&self) {
        self.began.fetch_add(1, Ordering::SeqCst);
        self.may_end.acquire().await.unwrap().forget();
    }

    fn pid_of(&self, pidfd: Fd<'_>) -> i32 {
        stelia_kernel::proc::pid_of_pidfd(pidfd.as_fd()).unwrap_or(-1)
    }
}

async fn serve(gate: &Gate, stream: StdStream) -> zbus::Result<Connection> {
    serve_to(gate, stream, "pod", Echo::default()).await
}

async fn serve_to(gate: &Gate, stream: StdStream, pod: &str, echo: Echo) -> zbus::Result<Connection> {
    stream.set_nonblocking(true).unwrap();
    let socket = gate
        .admit(UnixStream::from_std(stream).unwrap(), pod, &BTreeSet::new())
        .unwrap();
    let build = Builder::socket(socket)
        .server(Guid::generate())
        .p2p()
        .serve_at("/t", echo)
        .build();
    tokio::time::timeout(HANDSHAKE_TIMEOUT, build)
        .await
        .unwrap_or(Err(zbus::Error::InvalidReply))
}

async fn works(gate: &Gate) {
    let (client, server) = StdStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    let (server, client) = tokio::join!(serve(gate, server), Builder::unix_stream(client).p2p().build());
    let (_server, client) = (server.unwrap(), client.unwrap());
    call(&client).await;
}

#[tokio::test]
async fn an_ordinary_client_passes_with_a_descriptor() {
    works(&Gate::default()).await;
}

#[tokio::test]
async fn each_attack_ends_its_own_connection_and_nobody_elses() {
    let gate = Gate::default();
    let attacks: [(&str, Vec<u8>); 5] = [
        ("line feed first", b"\n".to_vec()),
        ("5 KiB before BEGIN", [&b"\0"[..], &[b'x'; 5000]].concat()),
        (
            "120 MiB header",
            [HANDSHAKE, &[b'l', 1, 0, 1, 0, 0, 0x80, 7, 1, 0, 0, 0, 0, 0, 0, 0]].concat(),
        ),
        ("silence", Vec::new()),
        ("half a message", [HANDSHAKE, &message(1, 4096)[..2000]].concat()),
    ];
    for (name, bytes) in attacks {
        let (mut attacker, server) = StdStream::pair().unwrap();
        attacker.write_all(&bytes).unwrap();
        match serve(&gate, server).await {
            Err(_) => {}
            // Authentication may have been good: then the connection must end by what follows it.
            Ok(connection) => {
                let closed = tokio::time::timeout(Duration::from_secs(20), connection.closed()).await;
                assert!(closed.is_ok(), "{name}: still open");
            }
        }
        works(&gate).await;
    }
}

#[tokio::test]
async fn descriptors_before_begin_are_closed_again() {
    let gate = Gate::default();
    let (attacker, server) = StdStream::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = [null.as_fd(); 4];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
    let bytes = [std::io::IoSlice::new(b"\0AUTH")];
    rustix::net::sendmsg(&attacker, &bytes, &mut ancillary, rustix::net::SendFlags::empty()).unwrap();
    assert!(serve(&gate, server).await.is_err());
    works(&gate).await;
}

async fn pair(gate: &Gate, pod: &str, echo: Echo) -> (Connection, Connection) {
    let (client, server) = StdStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    let client = Builder::unix_stream(client).p2p().build();
    let (server, client) = tokio::join!(serve_to(gate, server, pod, echo), client);
    (server.unwrap(), client.unwrap())
}

fn wait_call(flags: Option<Flags>) -> Message {
    let call = Message::method_call("/t", "Wait").interface("io.stelia.Test");
    let call = flags.into_iter().fold(call, |call, flags| call.with_flags(flags));
    call.build(&()).unwrap()
}

/// So many calls run, and it stays so for a while.
async fn assert_running(echo: &Echo, wanted: usize) {
    let began = || echo.began.load(Ordering::SeqCst);
    let reached = async {
        while began() < wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reached).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(began(), wanted);
}

#[rstest]
#[case::answered(None)]
#[case::that_want_no_answer(Some(Flags::NO_REPLY_EXPECTED))]
#[tokio::test]
async fn of_many_calls_only_some_are_under_way(#[case] flags: Option<Flags>) {
    let echo = Echo::default();
    let (_server, client) = pair(&Gate::default(), "pod", echo.clone()).await;
    for _ in 0..20 {
        client.send(&wait_call(flags)).await.unwrap();
    }
    assert_running(&echo, calls::MAX_UNANSWERED_CALLS).await;
    echo.may_end.add_permits(3);
    assert_running(&echo, calls::MAX_UNANSWERED_CALLS + 3).await;
    echo.may_end.add_permits(20);
    assert_running(&echo, 20).await;
}

#[tokio::test]
async fn a_peer_that_left_with_calls_under_way_and_others_unread_is_gone_at_once() {
    let echo = Echo::default();
    let (server, client) = pair(&Gate::default(), "pod", echo.clone()).await;
    for _ in 0..20 {
        client.send(&wait_call(None)).await.unwrap();
    }
    assert_running(&echo, calls::MAX_UNANSWERED_CALLS).await;
    client.close().await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(5), server.closed()).await;
    assert!(closed.is_ok());
    assert_running(&echo, calls::MAX_UNANSWERED_CALLS).await;
}

#[tokio::test]
async fn a_handshake_does_not_wait_for_other_pods_calls() {
    let gate = Gate::default();
    let now = Instant::now();
    let slots: Vec<_> = (0..200)
        .map(|n| pod_call_limits::PodCallLimits::connect(&gate.limits, &n.to_string(), &BTreeSet::new(), now).unwrap())
        .collect();
    // All of them together owe minutes.
    slots.iter().for_each(|slot| slot.spend(1000, now));
    let (_server, _client) = pair(&gate, "newcomer", Echo::default()).await;
    assert!(now.elapsed() < HANDSHAKE_TIMEOUT);
}

/// A call of `client`'s to `PidOf`, with a descriptor.
async fn call(client: &Connection) {
    let me = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap();
    let arguments = Fd::from(me.as_fd());
    let reply = client.call_method(None::<&str>, "/t", Some("io.stelia.Test"), "PidOf", &arguments);
    let reply = tokio::time::timeout(Duration::from_secs(10), reply).await.unwrap();
    assert_eq!(
        reply.unwrap().body().deserialize::<i32>().unwrap(),
        std::process::id() as i32
    );
}

async fn rests(server: Connection, peer: &PeerConnection) {
    let closed = tokio::time::timeout(Duration::from_secs(10), server.closed()).await;
    assert!(closed.is_ok() && peer.is_resting());
}

/// The connection after a rest, with the objects it had before.
async fn again(peer: &Arc<PeerConnection>) -> Connection {
    let connection = Builder::authenticated_socket(GatedSocket::again(peer), Guid::generate());
    let connection = connection.p2p().serve_at("/t", Echo::default());
    connection.build().await.unwrap()
}

#[tokio::test]
async fn a_connection_that_rested_is_to_its_peer_what_it_was() {
    let (client, server) = StdStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let server = UnixStream::from_std(server).unwrap();
    let socket = Gate::default().admit(server, "pod", &BTreeSet::new()).unwrap();
    let peer = socket.connection().clone();
    let server = Builder::socket(socket).server(Guid::generate()).p2p();
    let server = server.serve_at("/t", Echo::default()).build();
    let (server, client) = tokio::join!(server, Builder::unix_stream(client).p2p().build());
    let (server, client) = (server.unwrap(), client.unwrap());
    let mut signals = MessageStream::from(&client);
    call(&client).await;
    rests(server, &peer).await;
    for _ in 0..3 {
        let silent = tokio::time::timeout(Duration::from_millis(50), peer.is_called()).await;
        assert!(silent.is_err());
        // What the peer sends meanwhile is answered when the connection is awake.
        let ((), server) = tokio::join!(call(&client), async {
            assert!(peer.is_called().await);
            let server = again(&peer).await;
            // Objects that are made anew are not told of.
            emit(&server, "Old").await;
            peer.wake();
            emit(&server, "New").await;
            server
        });
        rests(server, &peer).await;
        let signal = Message::signal("/t", "io.stelia.Test", "Resting").build(&()).unwrap();
        write(&peer, signal.data()).await.unwrap();
        let mut told = Vec::new();
        while told.last().is_none_or(|name| name != "Resting") {
            let message = tokio::time::timeout(Duration::from_secs(10), signals.next()).await;
            let message = message.unwrap().unwrap().unwrap();
            if message.message_type() == zbus::message::Type::Signal {
                told.push(message.header().member().unwrap().to_string());
            }
        }
        assert_eq!(told, ["New", "Resting"]);
    }
    client.close().await.unwrap();
    assert!(!peer.is_called().await);
}

async fn emit(server: &Connection, signal: &str) {
    let emitted = server.emit_signal(None::<&str>, "/t", "io.stelia.Test", signal, &());
    emitted.await.unwrap();
}

#[tokio::test]
async fn a_connection_with_a_call_under_way_does_not_rest() {
    let echo = Echo::default();
    let (server, client) = pair(&Gate::default(), "pod", echo.clone()).await;
    call(&client).await;
    client.send(&wait_call(None)).await.unwrap();
    assert_running(&echo, 1).await;
    assert!(!server.is_closed());
    echo.may_end.add_permits(1);
    let closed = tokio::time::timeout(Duration::from_secs(10), server.closed()).await;
    assert!(closed.is_ok());
}

#[tokio::test]
async fn a_connection_wakes_without_its_turn_when_others_take_all() {
    let gate = Gate::default();
    let mut turns = Vec::new();
    for _ in 0..MAX_WAKING_CONNECTIONS {
        turns.push(gate.waking().await);
    }
    let start = Instant::now();
    assert!(gate.waking().await.turn.is_none());
    assert!(start.elapsed() >= MAX_WAKE_DELAY);
    // Slow work keeps its turn for a moment only.
    let slow = turns.pop().unwrap().during(tokio::time::sleep(WAKING_TIME * 10));
    let (waking, ()) = tokio::join!(gate.waking(), slow);
    assert!(waking.turn.is_some());
    // Quick work gives it back at its end.
    drop(waking);
    let quick = gate.waking().await;
    assert!(quick.turn.is_some());
    quick.during(async {}).await;
    assert!(gate.waking().await.turn.is_some());
}
