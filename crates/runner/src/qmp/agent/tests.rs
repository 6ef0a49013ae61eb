use std::path::PathBuf;
use std::time::Instant;

use rstest::rstest;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;

use super::*;

/// An agent that answers the n-th request with the n-th of the answers as it stands, `ID` replaced by that of the first; then it is silent.
struct Fake {
    dir: TempDir,
    asked: tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Fake {
    fn new(answers: &[&[u8]]) -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("agent")).unwrap();
        let answers: Vec<Vec<u8>> = answers.iter().map(|answer| answer.to_vec()).collect();
        let (sender, asked) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let mut id = String::new();
            for answer in answers {
                let mut line = Vec::new();
                stream.read_until(b'\n', &mut line).await.unwrap();
                if id.is_empty() {
                    let sync: Value = serde_json::from_slice(&line[1..]).unwrap();
                    id = sync["arguments"]["id"].to_string();
                }
                let _ = sender.send(line);
                let at = answer.windows(2).position(|two| two == b"ID");
                let text = match at {
                    Some(at) => [&answer[..at], id.as_bytes(), &answer[at + 2..]].concat(),
                    None => answer,
                };
                // The client may have left.
                let _ = stream.write_all(&text).await;
            }
            std::future::pending::<()>().await;
        });
        Fake { dir, asked }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("agent")
    }

    async fn set(&self, vcpus: &[u32], online: bool) -> Result<Vec<u32>, String> {
        let limit = Duration::from_millis(500);
        let set = set_vcpus(&self.socket(), vcpus, online, limit).await;
        set.map_err(|error| error.to_string())
    }
}

const SYNC: &[u8] = b"\xff{\"return\": ID}\n";
/// CPU 1 is offline, and CPU 2 cannot be.
const FOUR: &[u8] = br#"{"return": [{"logical-id": 3, "online": true, "can-offline": true},
 {"online": true, "can-offline": false, "logical-id": 0}, {"logical-id": 1, "online": false, "can-offline": true},
 {"logical-id": 2, "online": true, "can-offline": false, "new-in-qemu-99": []}]}"#;

fn one_line(text: &[u8]) -> Vec<u8> {
    let mut line: Vec<u8> = text.iter().copied().filter(|byte| *byte != b'\n').collect();
    line.push(b'\n');
    line
}

#[tokio::test]
async fn the_vcpus_asked_for_are_taken_offline_and_no_others() {
    let four = one_line(FOUR);
    let mut fake = Fake::new(&[SYNC, &four, b"{\"return\": 1}\n"]);
    assert_eq!(fake.set(&[3, 2, 1, 0, 9], false).await, Ok(vec![3]));
    let sync = fake.asked.recv().await.unwrap();
    assert_eq!(sync[0], SENTINEL);
    let mut asked = Vec::new();
    while let Ok(line) = fake.asked.try_recv() {
        asked.push(serde_json::from_slice::<Value>(&line).unwrap());
    }
    let set =
        serde_json::json!({"execute": "guest-set-vcpus", "arguments": {"vcpus": [{"logical-id": 3, "online": false}]}});
    assert_eq!(
        asked,
        [serde_json::json!({"execute": "guest-get-vcpus", "arguments": {}}), set]
    );
}

#[tokio::test]
async fn what_stays_is_brought_online_again() {
    let four = one_line(FOUR);
    let fake = Fake::new(&[SYNC, &four, b"{\"return\": 1}\n"]);
    assert_eq!(fake.set(&[1, 3], true).await, Ok(vec![1]));
}

#[tokio::test]
async fn a_guest_that_changes_part_of_the_list_is_believed_no_more_than_that() {
    for (answer, expected) in [
        (&b"{\"return\": 1}\n"[..], vec![3]),
        (b"{\"return\": 99}\n", vec![3, 2]),
        (b"{\"return\": -7}\n", vec![]),
    ] {
        let known = br#"{"return":[{"logical-id":2,"online":true,"can-offline":true},{"logical-id":3,"online":true,"can-offline":true},{"logical-id":7,"online":true,"can-offline":true}]}"#;
        let fake = Fake::new(&[SYNC, &one_line(known), answer]);
        assert_eq!(fake.set(&[3, 2], false).await, Ok(expected));
    }
}

#[tokio::test]
async fn what_a_former_client_left_is_skipped() {
    let stale = b"lse}]}\n{\"return\": 5}\n{\"error\": {\"class\": \"GenericError\", \"desc\": \"bad\"}}\n\xff{\"return\": 4}\n{\"retu\xff{\"return\": ID}\n";
    let fake = Fake::new(&[stale, &one_line(FOUR), b"{\"return\": 1}\n"]);
    assert_eq!(fake.set(&[3], false).await, Ok(vec![3]));
}

#[tokio::test]
async fn an_answer_without_the_sentinel_is_not_that_of_this_client() {
    let fake = Fake::new(&[b"{\"return\": ID}\n"]);
    assert!(fake.set(&[3], false).await.unwrap_err().contains("no answer within"));
}

#[rstest]
#[case::silent(&[], "no answer within 0.5 s")]
#[case::another_number(&[b"\xff{\"return\": 7}\n" as &[u8]], "no answer within 0.5 s")]
#[case::an_error(&[SYNC, b"{\"error\": {\"class\": \"CommandNotFound\", \"desc\": \"dis\\nabled\\u001b[2J\"}}\n"], "guest-get-vcpus: CommandNotFound: dis\\nabled\\u{1b}[2J")]
#[case::no_list(&[SYNC, b"{\"return\": {}}\n"], "guest-get-vcpus: unexpected answer")]
#[case::numbers_beyond_all(&[SYNC, b"{\"return\": [{\"logical-id\": 1e400, \"online\": true}]}\n"], "no answer within 0.5 s")]
#[case::noise(&[SYNC, b"[[[[\n\x00\xff\n{}\nnull\n"], "no answer within 0.5 s")]
#[tokio::test]
async fn a_guest_that_answers_oddly_is_an_error_in_time(#[case] answers: &[&[u8]], #[case] expected: &str) {
    let fake = Fake::new(answers);
    let started = Instant::now();
    let error = fake.set(&[3], false).await.unwrap_err();
    assert!(error.contains(expected), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_guest_that_floods_is_cut_off() {
    let line = vec![b'x'; MAX_LINE_BYTES + 2];
    let error = Fake::new(&[&line]).set(&[3], false).await.unwrap_err();
    assert!(error.contains("a message of more than"), "{error}");
    let lines = "{}\n".repeat(MAX_CONVERSATION_BYTES / 2);
    let error = Fake::new(&[lines.as_bytes()]).set(&[3], false).await.unwrap_err();
    assert!(
        error.contains("more than 1048576 bytes") || error.contains("no answer"),
        "{error}"
    );
    let text = format!(
        "{{\"error\": {{\"class\": \"C\", \"desc\": \"{}\"}}}}\n",
        "y".repeat(9000)
    );
    let error = Fake::new(&[SYNC, text.as_bytes()]).set(&[3], false).await.unwrap_err();
    assert!(error.len() < 500, "{}", error.len());
}

#[tokio::test]
async fn without_a_socket_it_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let error = set_vcpus(&dir.path().join("none"), &[1], false, Duration::MAX)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("/none: "), "{error}");
}

proptest::proptest! {
    #[test]
    fn only_what_was_asked_for_is_changed(known: Vec<(i8, bool, bool)>, vcpus: Vec<u8>, online: bool) {
        let known: Vec<LogicalProcessor> = known
            .into_iter()
            .map(|(id, online, can_offline)| LogicalProcessor { logical_id: id.into(), online, can_offline })
            .collect();
        let vcpus: Vec<u32> = vcpus.into_iter().map(u32::from).collect();
        for one in to_change(&known, &vcpus, online) {
            let number = u32::try_from(one.logical_id).unwrap();
            assert!(vcpus.contains(&number) && one.online == online && (online || number > 0));
        }
    }

    #[test]
    fn no_line_is_too_odd(line: Vec<u8>) {
        let _ = parse(&line);
    }
}
