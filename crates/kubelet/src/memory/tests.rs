use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use rstest::rstest;

const FOLDER: &str = "../../tests/data/kubelet-checkpoints";

fn parse(folder: &str) -> MemoryManagerState {
    let path = Path::new(FOLDER).join(folder).join(MEMORY_MANAGER_STATE);
    MemoryManagerState::parse(&fs::read(path).unwrap()).unwrap()
}

/// What a genuine file contains: folder, schema, policy, free bytes of `memory` by node, the numbers of containers and
/// of pods with entries.
type Line = (&'static str, MemorySchema, &'static str, &'static [u64], usize, usize);

const GENUINE: [Line; 8] = [
    ("k136-gate-off/00-none", MemorySchema::V1, "None", &[], 0, 0),
    ("k136-gate-off/01-static-empty", MemorySchema::V1, "Static", EMPTY, 0, 0),
    (
        "k136-gate-off/03a-vm40",
        MemorySchema::V1,
        "Static",
        &[10_200_547_328, 19_327_352_832],
        1,
        0,
    ),
    ("k136-gate-off/03b-many", MemorySchema::V1, "Static", MANY, 9, 0),
    (
        "k136-gate-off/04a-strict-empty",
        MemorySchema::V1,
        "Static",
        EMPTY,
        0,
        0,
    ),
    ("k136-gate-on/01-static-empty", MemorySchema::V2, "Static", EMPTY, 0, 0),
    ("k136-gate-on/03b-many", MemorySchema::V2, "Static", MANY, 9, 0),
    (
        "k136-gate-on/05a-podlevel-podscope",
        MemorySchema::V2,
        "Static",
        PODS,
        8,
        2,
    ),
];
/// The file of kubelet 1.37 has the same content as that of 1.36.
const REBUILT: &str = "rebuilt-1.37/05a-podlevel-podscope";
const EMPTY: &[u64] = &[18_790_481_920, 19_327_352_832];
const MANY: &[u64] = &[3_758_096_384, 8_053_063_680];
const PODS: &[u64] = &[0, 1_610_612_736];

#[test]
fn every_genuine_file_is_read_whole() {
    for (folder, schema, policy, free, containers, pods) in GENUINE {
        let state = parse(folder);
        assert_eq!((state.schema, state.policy.as_str()), (schema, policy), "{folder}");
        let found: Vec<u64> = state.nodes.values().map(|node| node.tables["memory"].free).collect();
        assert_eq!(found, free, "{folder}");
        assert_eq!(
            state.entries.values().map(BTreeMap::len).sum::<usize>(),
            containers,
            "{folder}"
        );
        assert_eq!(state.pod_entries.len(), pods, "{folder}");
    }
    let (new, old) = (parse(REBUILT), parse("k136-gate-on/05a-podlevel-podscope"));
    assert_eq!(new.schema, MemorySchema::V3);
    assert_eq!(
        new,
        MemoryManagerState {
            schema: MemorySchema::V3,
            ..old
        }
    );
}

#[rstest]
fn no_genuine_file_is_forgotten_above(
    #[files("../../tests/data/kubelet-checkpoints/**/memory_manager_state")] file: PathBuf,
) {
    let mut known = GENUINE.iter().map(|line| line.0).chain([REBUILT]);
    assert!(
        known.any(|folder| file
            .parent()
            .unwrap()
            .ends_with(Path::new(FOLDER.trim_start_matches("../")).join(folder))),
        "{file:?}"
    );
}

#[test]
fn every_number_is_where_it_belongs() {
    let state = parse("k136-gate-off/03a-vm40");
    let node = &state.nodes[&0];
    assert_eq!((node.assignments, node.cells.as_slice()), (2, [0].as_slice()));
    let table = MemoryTable {
        total: 116_500_987_904,
        system_reserved: 0,
        allocatable: 116_500_987_904,
        reserved: 85_899_345_920,
        free: 30_601_641_984,
    };
    assert_eq!(node.tables["hugepages-2Mi"], table);
    let uid = PodUid::parse("ce32ebd2-f905-449e-b74b-4231a84b88e1").unwrap();
    let block = MemoryBlock {
        nodes: vec![0],
        kind: "hugepages-2Mi".into(),
        size: 85_899_345_920,
    };
    assert_eq!(state.entries[&uid]["instance"][1], block);
}

#[rstest]
fn a_single_changed_digit_is_found(
    #[files("../../tests/data/kubelet-checkpoints/**/memory_manager_state")]
    #[files("../../tests/data/kubelet-checkpoints/hash-strings/mem-*.json")]
    file: PathBuf,
) {
    let bytes = fs::read(&file).unwrap();
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(MemoryManagerState::parse(&bytes).is_ok());
    // Of V3 only what counts: the string and its checksum.
    let from = text.find("\"data\":").map_or(0, |at| at + 8);
    for at in (from..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()) {
        let mut changed = bytes.clone();
        changed[at] = if changed[at] == b'9' { b'0' } else { changed[at] + 1 };
        assert!(MemoryManagerState::parse(&changed).is_err(), "byte {at} of {file:?}");
    }
}

#[rstest]
#[case("", "empty")]
#[case("[]", "not a JSON object")]
#[case(r#"{"policyName":"None","machineState":{}}"#, "missing field `checksum`")]
#[case(r#"{"policyName":"None","machineState":{},"checksum":0}"#, "stored 0")] // unlike the CPUs' file
#[case(
    r#"{"policyName":"None","machineState":{},"checksum":4236770233,"more":1}"#,
    "unknown field `more`"
)]
#[case(
    r#"{"policyName":"None","machineState":{},"data":"{}"}"#,
    "missing field `dataChecksum`"
)]
fn a_file_in_doubt_is_refused_with_the_reason(#[case] text: &str, #[case] reason: &str) {
    let error = MemoryManagerState::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}
