use std::collections::BTreeMap;

use super::*;
use crate::testing::{FakeKernel, set};

fn record() -> Record {
    let kept = |base: &str, ours: &[&str]| SavedMask {
        base: set(base),
        ours: ours.iter().map(|mask| set(mask)).collect(),
    };
    let identity = |irq, actions: &str| Identity {
        irq,
        hwirq: "1".into(),
        actions: actions.into(),
    };
    Record {
        default: Some(kept("0-7", &["0-3"])),
        interrupts: vec![
            (identity(30, "b"), kept("0-7", &["0-3", "0-1"])),
            (identity(24, "a"), kept("5", &[])),
        ],
    }
}

#[test]
fn what_is_saved_is_loaded_and_each_mask_is_written_once() {
    let kernel = FakeKernel::default();
    record().save(&kernel).expect("saved");
    assert_eq!(Record::load(&kernel).expect("loaded"), record());
    assert_eq!(kernel.tree().saved[NAME].matches("\"0-7\"").count(), 1);
}

#[test]
fn what_is_not_understood_is_an_error_with_the_name() {
    let places = r#"{"masks":[],"default":{"base":0,"ours":[]},"interrupts":[]}"#;
    let more = r#"{"masks":[],"default":null,"interrupts":[],"more":1}"#;
    for text in [
        "",
        "{",
        "[]",
        places,
        more,
        r#"{"masks":["x"],"default":null,"interrupts":[]}"#,
    ] {
        let kernel = FakeKernel::default();
        kernel.tree().saved = BTreeMap::from([(NAME.into(), text.into())]);
        let error = Record::load(&kernel).expect_err(text);
        assert!(error.starts_with("read the record interrupts.json: "), "{error}");
    }
}
