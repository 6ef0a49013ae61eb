//! What QEMU answers: `query-cpus-fast`, `query-iothreads`, `query-status`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_runner::qmp::{Iothread, StatusInfo, Vcpu};
use zbus::Variant;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(status) = serde_json::from_slice::<StatusInfo>(bytes) {
        // A guest that runs is asked to power down.
        assert!(!status.ignores_power_button() || !["running", "paused"].contains(&status.status.as_str()));
    }
    let _ = serde_json::from_slice::<Vec<Iothread>>(bytes);
    let Ok(vcpus) = serde_json::from_slice::<Vec<Vcpu>>(bytes) else {
        return;
    };
    for vcpu in &vcpus {
        let (index, thread, props) = vcpu.to_dbus();
        assert_eq!((index, thread), (vcpu.cpu_index, vcpu.thread_id));
        // A known property that is an integer of 32 bits is handed on as it is, and nothing else is.
        let known = ["socket-id", "core-id", "thread-id", "node-id", "die-id", "cluster-id"];
        for (name, value) in &vcpu.props {
            let number = value.as_i64().filter(|_| known.contains(&name.as_str()));
            let number = number.filter(|number| (i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(number));
            let sent = props.get(name.as_str()).map(|value| match value {
                Variant::U32(number) => i64::from(*number),
                Variant::I32(number) => i64::from(*number),
                other => panic!("{other:?}"),
            });
            assert_eq!(sent, number, "{name}");
        }
        assert!(props.keys().all(|name| vcpu.props.contains_key(*name)));
        // And steliad takes every name.
        assert!(props.keys().all(|name| stelia_model::record::is_prop_name(name)));
    }
});
