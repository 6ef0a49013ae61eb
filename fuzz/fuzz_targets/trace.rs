//! The kernel's histograms of who ran. A task chooses its own name, and must not choose what is counted of it or of others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steliad_quiet::trace::hist::parse;

fuzz_target!(|bytes: &[u8]| {
    // Files that are anything at all.
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().count() + 1;
    let histograms = parse(&text);
    assert!(histograms.iter().map(|one| one.rows.len() + 1).sum::<usize>() <= lines);
    for row in histograms.iter().flat_map(|one| &one.rows) {
        assert!(row.keys.iter().all(|key| key.len() <= text.len()));
    }
    // Files as the kernel writes them of tasks with these names: 15 bytes without a NUL, raw.
    let mut file = b"# trigger info: hist:keys=next_comm,common_cpu:vals=hitcount:size=2048 [active]\n#\n\n".to_vec();
    let names: Vec<Vec<u8>> = bytes
        .chunks(15)
        .map(|name| name.iter().copied().filter(|byte| *byte != 0).collect())
        .collect();
    for (name, cpu) in names.iter().zip(0_u32..) {
        file.extend(b"{ next_comm: ");
        file.extend(name);
        file.resize(file.len() + 48 - name.len(), b' ');
        file.extend(format!(", common_cpu: {cpu:>10} }} hitcount: {:>10}\n", cpu + 7).bytes());
    }
    file.extend(b"\nTotals:\n    Hits: 1\n    Entries: 1\n    Dropped: 3\n");
    let histograms = parse(&String::from_utf8_lossy(&file));
    assert_eq!(histograms.len(), 1);
    let read: Vec<(String, u64)> = histograms[0]
        .rows
        .iter()
        .map(|row| (row.keys[1].clone(), row.hits))
        .collect();
    let expected: Vec<(String, u64)> = (0..names.len() as u64).map(|cpu| (cpu.to_string(), cpu + 7)).collect();
    assert_eq!(read, expected);
    assert_eq!((histograms[0].dropped, histograms[0].unread), (3, 0));
});
