//! What is said of the file for the cluster's publisher.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use stelia_api::publication::{DIRECTORY, FILE, LOCK};
use stelia_api::publishing::Publishing;

use super::super::publish::Published;
use super::*;

const TEXT: &str =
    r#"{"version":1,"node":"n","ready":{"status":true,"reason":"Ready","message":""},"pods":[],"events":[]}"#;

/// A node whose folder has this file, under a lock or not.
fn publishing(text: &str, locked: bool) -> Facts {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(DIRECTORY.trim_start_matches('/'));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(FILE), text).unwrap();
    let lock = File::create(folder.join(LOCK)).unwrap();
    if locked {
        flock(&lock, FlockOperation::LockExclusive).unwrap();
    }
    Facts {
        publishing: Some(Publishing {
            profile: Some("nrt".to_owned()),
            ..Publishing::default()
        }),
        published: Published::read(root.path()),
        ..fit()
    }
}

/// No such file.
pub(super) fn nothing() -> Published {
    Published::read(Path::new("/nonexistent"))
}

fn said(facts: &Facts) -> (Verdict, String) {
    let all = checks(facts);
    let one = all.iter().find(|check| check.check == "publish").unwrap();
    (one.verdict, one.found.clone())
}

#[test]
fn a_file_that_a_daemon_says_is_true_passes() {
    assert_eq!(
        said(&publishing(TEXT, true)),
        (Verdict::Ok, "nrt: Ready, 0 VMs, 0 events".to_owned())
    );
}

#[test]
fn a_file_that_is_old_broken_or_absent_is_told() {
    let old = said(&publishing(TEXT, false));
    assert_eq!(old.0, Verdict::Warning);
    assert!(old.1.ends_with("node.json is not locked by a daemon"), "{old:?}");
    let newer = said(&publishing(r#"{"version":9}"#, true));
    assert!(newer.1.ends_with("written by a newer steliad"), "{newer:?}");
    let absent = Facts {
        published: nothing(),
        ..publishing(TEXT, true)
    };
    assert_eq!(said(&absent).0, Verdict::Warning);
}

#[test]
fn the_daemons_own_words_come_first_and_off_is_no_fault() {
    let mut facts = publishing(TEXT, true);
    facts.publishing.as_mut().unwrap().problem = Some("write …: No space left on device".to_owned());
    assert_eq!(
        said(&facts),
        (Verdict::Warning, "write …: No space left on device".to_owned())
    );
    facts.publishing = Some(Publishing::default());
    assert_eq!(said(&facts).0, Verdict::Ok);
    assert!(said(&facts).1.starts_with("off"));
}
