use super::*;

use crate::record::testing::{adopted, allocated, in_place, record};

fn map(record: &Record) -> BTreeMap<String, String> {
    record
        .attributes()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

#[test]
fn a_record_comes_back_as_it_was_written() {
    let mut by_name = adopted();
    by_name.adopted.as_mut().unwrap().keeps = false;
    let mut pinned = adopted();
    pinned.adopted.as_mut().unwrap().pinned = true;
    let mut both = by_name.clone();
    both.adopted.as_mut().unwrap().pinned = true;
    let refused = Record {
        refused: true,
        ..record()
    };
    let beside_devices = Record {
        devices: [0, 2].into(),
        ..allocated()
    };
    assert_eq!(map(&beside_devices)["devices"], "0,2");
    for record in [
        record(),
        beside_devices,
        allocated(),
        in_place(),
        adopted(),
        by_name,
        pinned,
        both,
        refused,
    ] {
        assert_eq!(Record::parse(&map(&record)), Ok(record));
    }
}

/// The next daemon goes on from it.
#[test]
fn a_record_is_written_in_these_words() {
    let written: Vec<(&str, String)> = record().attributes();
    let words: Vec<String> = written.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let wanted = [
        "pod-uid=b9e4f71c-64a5-4f8d-8574-41363cbaf8e5",
        "container=instance",
        "origin=/kubepods.slice/x.scope",
        "anchor=40:400",
        "mems=0",
        "registered-us=7",
        "vcpu-props=0 core-id=1 socket-id=0",
        "placement=linear",
        "partition=isolated",
        "vcpus=0:50:500:2,1:51:501:-",
        "exclusive-cpus=2-3 of 2-3",
        "isolated-us=8",
        "phase=isolated",
        "schema=1",
    ];
    assert_eq!(words, wanted);
}

#[test]
fn an_io_thread_is_a_number_from_2147483648_on_in_the_record_and_in_json() {
    let thread = VcpuThread {
        role: ThreadRole::IoThread(1),
        ..record().vcpus[0]
    };
    let record = Record {
        vcpus: vec![thread],
        ..record()
    };
    assert_eq!(map(&record)["vcpus"], "2147483649:50:500:2");
    let json = r#"{"index":2147483649,"task":{"id":50,"start":500},"cpu":2}"#;
    assert_eq!(serde_json::to_string(&thread).unwrap(), json);
    assert_eq!(Record::parse(&map(&record)), Ok(record));
}

#[test]
fn cpus_of_ours_are_of_a_schema_that_demands_the_allocation() {
    assert_eq!(map(&record())["schema"], "1");
    let mut attributes = map(&allocated());
    assert_eq!(attributes["schema"], "2");
    attributes.remove("allocation");
    assert_eq!(Record::parse(&attributes), Err(RecordError::Attribute("allocation")));
}

#[test]
fn a_record_cut_short_at_any_attribute_is_absent() {
    let all = allocated().attributes();
    for cut in 0..all.len() {
        let part = all[..cut]
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        assert_eq!(Record::parse(&part), Err(RecordError::Absent), "{cut}");
    }
}

#[test]
fn a_newer_schema_is_named_and_not_read() {
    let mut attributes = map(&record());
    attributes.insert("schema".into(), "3".into());
    assert_eq!(Record::parse(&attributes), Err(RecordError::Schema("3".into())));
}

#[test]
fn a_damaged_attribute_is_named() {
    for (name, text) in [("vcpus", "0:1:2"), ("mems", "all")] {
        let mut attributes = map(&record());
        attributes.insert(name.into(), text.into());
        assert_eq!(Record::parse(&attributes), Err(RecordError::Attribute(name)));
    }
}

/// A VM of so many vCPUs, with what QEMU says of each, on every other CPU.
fn of_vcpus(count: u32) -> Record {
    let cpus: CpuSet = (0..count).map(|index| 2 * index).collect();
    let names = ["core-id", "die-id", "node-id", "socket-id", "thread-id"];
    let props = |index: u32| names.map(|name| (name.to_owned(), i64::from(index % 1000))).into();
    let vcpu = |index: u32| VcpuThread {
        role: ThreadRole::Vcpu(index),
        task: TaskId {
            id: 4_194_000,
            start: 1_234_567_890,
        },
        cpu: Some(2 * index),
    };
    Record {
        exclusive: cpus.clone(),
        entry: cpus,
        vcpus: (0..count).map(vcpu).collect(),
        props: (0..count).map(|index| (index, props(index))).collect(),
        ..record()
    }
}

#[test]
fn a_record_of_a_large_vm_fits_the_kernels_attributes_and_one_that_does_not_is_named() {
    let large = of_vcpus(512);
    assert_eq!(large.too_large(), None);
    assert_eq!(Record::parse(&map(&large)), Ok(large));
    let text = of_vcpus(2048).too_large().unwrap();
    assert!(text.contains("2048 vCPUs"), "{text}");
    // CPUs alone: every other one of 4,096, four times.
    let cpus: CpuSet = (0..4096).step_by(2).collect();
    let alone = Record {
        exclusive: cpus.clone(),
        entry: cpus,
        ..record()
    };
    assert_eq!(alone.too_large(), None);
    assert_eq!(Record::parse(&map(&alone)), Ok(alone));
}
