//! An instance's record in the extended attributes of its scope: a line each, `name=value`.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use stelia_model::record::{Record, RecordError, SCHEMA_ATTRIBUTE, is_prop_name};
use steliad_fuzz::{fits, same};

fuzz_target!(|text: &str| {
    let attributes: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    match Record::parse(&attributes) {
        Ok(record) => check(record, &attributes),
        Err(error) => {
            fits(&error);
            assert_eq!(error == RecordError::Absent, !attributes.contains_key(SCHEMA_ATTRIBUTE));
        }
    }
});

fn map(written: &[(&'static str, String)]) -> BTreeMap<String, String> {
    written
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect()
}

fn check(mut record: Record, attributes: &BTreeMap<String, String>) {
    // It comes back as it was written, and is whole only when all of it is written.
    let written = record.attributes();
    same(
        &Record::parse(&map(&written)).as_ref(),
        &Ok(&record),
        "written and read",
    );
    for cut in 0..written.len() {
        assert_eq!(Record::parse(&map(&written[..cut])), Err(RecordError::Absent));
    }
    // None of these attributes is optional but `scheduled`: without it nobody chose the CPUs beforehand.
    for (missing, _) in &written {
        let mut part = map(&written);
        part.remove(*missing);
        let parsed = Record::parse(&part);
        if *missing == "scheduled" {
            let unscheduled = Record {
                scheduled: false,
                ..record.clone()
            };
            same(&parsed.as_ref(), &Ok(&unscheduled), "without a scheduler's choice");
        } else {
            assert!(parsed.is_err(), "without {missing}");
        }
    }
    assert_eq!(record.guest().len(), record.vcpus.len());
    // Every name that a caller may give a vCPU's property can be recorded.
    let names = attributes.values().filter(|name| is_prop_name(name));
    record
        .props
        .insert(7, names.map(|name| (name.clone(), i64::MIN)).collect());
    same(
        &Record::parse(&map(&record.attributes())).as_ref(),
        &Ok(&record),
        "with more properties",
    );
}
