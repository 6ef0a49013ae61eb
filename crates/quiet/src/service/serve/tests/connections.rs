//! Which peers are answered, and when the program ends.

use super::*;

#[test]
fn whoever_is_not_the_daemon_is_not_answered_nor_read() {
    let node = Node::new();
    let asked = Cell::new(0);
    let (mut client, server) = UnixStream::pair().unwrap();
    client.write_all(&line(&order())).unwrap();
    let admit = |_: &UnixStream| {
        asked.set(asked.get() + 1);
        Err(ForeignPeer("a process of /x".into()))
    };
    node.admitting(&admit, |serving| {
        serving.serve_connection(server);
        assert_eq!(serving.state.foreign_peers.len(), 1);
        serving.serve_connection(UnixStream::pair().unwrap().1);
        assert_eq!(serving.state.foreign_peers.len(), 1);
    });
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert_eq!((answer, asked.get()), (Vec::new(), 2));
    node.unchanged();
}

#[test]
fn it_serves_one_after_the_other_and_ends_when_it_is_told_to_or_nothing_is_ordered() {
    let node = Node::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quiet.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (told, tell) = pipe().unwrap();
    let idle = Duration::from_millis(500);
    let daemon = thread::spawn({
        let path = path.clone();
        move || -> Vec<Result<Report, OrderError>> {
            let one = || client::order(&path, &order(), client::ANSWER_TIMEOUT);
            let mut wrong = order();
            wrong.shared = set("2");
            vec![one(), client::order(&path, &wrong, client::ANSWER_TIMEOUT), one()]
        }
    });
    let end = node
        .with(|serving| serving.serve(&listener, told.as_fd(), idle))
        .unwrap();
    assert_eq!(end, End::Idle);
    let answers = daemon.join().unwrap();
    assert!(
        matches!(&answers[..], [Ok(_), Err(OrderError::Refused(_)), Ok(_)]),
        "{answers:?}"
    );
    // One that waits is left to the next start.
    let _waits = UnixStream::connect(&path).unwrap();
    rustix::io::write(&tell, b"x").unwrap();
    let end = node
        .with(|serving| serving.serve(&listener, told.as_fd(), idle))
        .unwrap();
    assert_eq!(end, End::Stopped);
    listener.accept().unwrap();
}
