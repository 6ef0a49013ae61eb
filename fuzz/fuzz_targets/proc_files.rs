//! `/proc/<pid>/stat`, `status` and `cgroup`. A process chooses its own name, and must not choose anything else by it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_node::proc::{ns_numbers, start_time, thread_group, unified_cgroup};

fuzz_target!(|bytes: &[u8]| {
    // Files that are anything at all.
    let text = String::from_utf8_lossy(bytes);
    let _ = (start_time(&text), ns_numbers(&text), thread_group(&text));
    if let Some(path) = unified_cgroup(&text) {
        assert!(text.contains(path.as_str()));
    }
    // Files as the kernel writes them of a process with this name: 15 bytes without a NUL, raw in stat; in status line
    // feeds and backslashes are escaped.
    let name: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).take(15).collect();
    let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
    let stat = [b"7 (", name.as_slice(), b") S ", fields.join(" ").as_bytes()].concat();
    assert_eq!(start_time(&String::from_utf8_lossy(&stat)), Some(22));
    let mut escaped = Vec::new();
    for byte in name {
        match byte {
            b'\n' => escaped.extend(b"\\n"),
            b'\\' => escaped.extend(b"\\\\"),
            other => escaped.push(other),
        }
    }
    let status = [
        b"Name:\t",
        escaped.as_slice(),
        b"\nState:\tS\nTgid:\t7\nNgid:\t0\nNStgid:\t7\t1\nNSpid:\t8\t2\n",
    ]
    .concat();
    let status = String::from_utf8_lossy(&status);
    assert_eq!(thread_group(&status), Some(7));
    assert_eq!(ns_numbers(&status), Some(vec![8, 2]));
});
