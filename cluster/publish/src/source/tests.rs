use std::fs::File;

use serde_json::json;
use stelia_api::publication::{FILE, LOCK, MAX_FILE_BYTES, VERSION};
use tokio::sync::watch;

use super::*;

struct Daemon {
    folder: PathBuf,
    lock: Option<File>,
}

/// As the daemon does it: the lock first, held by a file that is open for writing. It waits for a look that has it for a moment.
fn lock(folder: &Path) -> File {
    let file = File::create(folder.join(LOCK)).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

impl Daemon {
    fn new(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        Self {
            folder: folder.to_owned(),
            lock: Some(lock(folder)),
        }
    }

    fn write(&self, text: &[u8]) {
        let new = self.folder.join("node.json.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.folder.join(FILE)).unwrap();
    }

    fn tell(&self, number: u32) {
        self.write(told(number).as_bytes());
    }
}

/// The publication with this number.
fn told(number: u32) -> String {
    let ready = json!({"status": true, "reason": "Ready", "message": number.to_string()});
    json!({"version": VERSION, "node": "worker-1", "ready": ready, "pods": [], "events": []}).to_string()
}

fn number(reading: &Reading) -> Option<u32> {
    reading.publication.as_ref()?.ready.message.parse().ok()
}

/// What the folder tells now.
fn now(source: &mut Source) -> Reading {
    source.look();
    source.readings().borrow().clone()
}

async fn until(readings: &mut watch::Receiver<Reading>, what: impl Fn(&Reading) -> bool) -> Reading {
    readings.wait_for(|reading| what(reading)).await.unwrap().clone()
}

#[tokio::test]
async fn what_the_daemon_writes_arrives_and_its_end_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::new(folder.path());
    daemon.tell(1);
    let source = Source::new(folder.path().to_owned());
    let mut readings = source.readings();
    let first = readings.borrow_and_update().clone();
    assert_eq!(number(&first), Some(1));
    assert!(first.daemon_lives);
    assert_eq!(first.problem, None);
    let following = tokio::spawn(source.follow());
    daemon.tell(2);
    until(&mut readings, |reading| number(reading) == Some(2)).await;
    // It ends: the kernel closes its files.
    daemon.lock = None;
    let away = until(&mut readings, |reading| !reading.daemon_lives).await;
    assert_eq!((number(&away), away.problem), (Some(2), None));
    daemon.lock = Some(lock(folder.path()));
    daemon.tell(3);
    let again = until(&mut readings, |reading| number(reading) == Some(3)).await;
    assert!(again.daemon_lives);
    following.abort();
}

#[tokio::test]
async fn a_file_of_no_use_is_named_and_takes_nothing_away() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::new(folder.path());
    daemon.tell(1);
    let mut source = Source::new(folder.path().to_owned());
    assert_eq!(now(&mut source).problem, None);
    let large = vec![b' '; MAX_FILE_BYTES + 1];
    let texts: [(&[u8], &str); 3] = [
        (b"{\"version\": 2}", "node.json: version 2"),
        (b"{\"version\": 1, \"no", "node.json: EOF"),
        (&large, "node.json: 4194305 bytes"),
    ];
    for (text, problem) in texts {
        daemon.write(text);
        let reading = now(&mut source);
        assert_eq!(number(&reading), Some(1));
        assert!(reading.problem.as_ref().unwrap().contains(problem), "{reading:?}");
        assert_eq!(now(&mut source), reading, "and goes on so");
    }
    std::fs::remove_file(folder.path().join(FILE)).unwrap();
    assert!(now(&mut source).problem.unwrap().contains("No such file"));
    daemon.tell(4);
    let reading = now(&mut source);
    assert_eq!((number(&reading), reading.problem), (Some(4), None));
}

#[tokio::test]
async fn a_folder_that_is_made_later_or_anew_is_followed() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("publish");
    let source = Source::new(folder.clone());
    let mut readings = source.readings();
    let first = readings.borrow_and_update().clone();
    assert_eq!((number(&first), first.daemon_lives), (None, false));
    assert!(first.problem.unwrap().contains("No such file"));
    let following = tokio::spawn(source.follow());
    let daemon = Daemon::new(&folder);
    daemon.tell(1);
    until(&mut readings, |reading| number(reading) == Some(1)).await;
    std::fs::rename(&folder, above.path().join("old")).unwrap();
    let daemon = Daemon::new(&folder);
    daemon.tell(2);
    let second = |reading: &Reading| number(reading) == Some(2) && reading.daemon_lives;
    until(&mut readings, second).await;
    following.abort();
}

#[test]
fn a_look_does_not_keep_the_daemon_from_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(LOCK), "").unwrap();
    let mut source = Source::new(folder.path().to_owned());
    assert!(!now(&mut source).daemon_lives);
    let held = lock(folder.path());
    assert!(now(&mut source).daemon_lives);
    drop(held);
    assert!(!now(&mut source).daemon_lives);
}
