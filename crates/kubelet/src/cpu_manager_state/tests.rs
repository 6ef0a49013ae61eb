use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use rstest::rstest;

const FOLDER: &str = "../../tests/data/kubelet-checkpoints";

fn read(name: &str) -> Vec<u8> {
    fs::read(Path::new(FOLDER).join(name)).unwrap()
}

fn parse(name: &str) -> CpuManagerState {
    CpuManagerState::parse(&read(name)).unwrap()
}

fn pod(uid: &str) -> PodUid {
    PodUid::parse(uid).unwrap()
}

/// What each genuine file contains: schema, policy, shared pool, all assigned CPUs.
const GENUINE: [(&str, Schema, &str, &str, &str); 14] = [
    ("hash-strings/cpu-v3.json", Schema::V3, "static", "2-11", "0-1,12-13"),
    ("k136-gate-off/00-none", Schema::V2, "none", "", ""),
    ("k136-gate-off/01-static-empty", Schema::V2, "static", "0-127", ""),
    ("k136-gate-off/02-article", Schema::V2, "static", "2-11", "0-1,12-19"),
    (
        "k136-gate-off/03a-vm40",
        Schema::V2,
        "static",
        "0,21-64,85-127",
        "1-20,65-84",
    ),
    ("k136-gate-off/03b-many", Schema::V2, "static", MANY.0, MANY.1),
    (
        "k136-gate-off/04a-strict-empty",
        Schema::V2,
        "static",
        "1-63,65-127",
        "",
    ),
    ("k136-gate-on/01-static-empty", Schema::V3, "static", "0-127", ""),
    ("k136-gate-on/03b-many", Schema::V3, "static", MANY.0, MANY.1),
    (
        "k136-gate-on/05a-podlevel-podscope",
        Schema::V3,
        "static",
        PODS.0,
        PODS.1,
    ),
    ("rebuilt-1.37/02-article", Schema::V4, "static", "2-11", "0-1,12-19"),
    (
        "rebuilt-1.37/05a-podlevel-podscope",
        Schema::V4,
        "static",
        PODS.0,
        PODS.1,
    ),
    ("rebuilt-1.37/06-baselines", Schema::V4, "static", "2-11", "0-1,12-19"),
    (
        "write-sequence/gate-off/036.json",
        Schema::V2,
        "static",
        "5-63,69-127",
        "1-4,65-68",
    ),
];
const MANY: (&str, &str) = ("0,30-31,62-64,94-95,100,126-127", "1-29,32-61,65-93,96-99,101-125");
const PODS: (&str, &str) = ("0,17-64,81-127", "1-16,65-80");

/// The file of a line above.
fn path(name: &str) -> String {
    if name.ends_with(".json") {
        name.to_owned()
    } else {
        format!("{name}/{CPU_MANAGER_STATE}")
    }
}

#[test]
fn every_genuine_file_is_read_whole() {
    for (name, schema, policy, pool, assigned) in GENUINE {
        let state = parse(&path(name));
        let found = (
            state.schema,
            state.policy.as_str(),
            state.shared_pool().to_string(),
            state.assigned().to_string(),
        );
        assert_eq!(found, (schema, policy, pool.to_owned(), assigned.to_owned()), "{name}");
    }
}

#[rstest]
fn no_genuine_file_is_forgotten_above(
    #[files("../../tests/data/kubelet-checkpoints/**/cpu_manager_state")]
    #[files("../../tests/data/kubelet-checkpoints/hash-strings/cpu-*.json")]
    file: PathBuf,
) {
    assert!(
        GENUINE
            .iter()
            .any(|line| file.ends_with(Path::new(FOLDER.trim_start_matches("../")).join(path(line.0)))),
        "{file:?}"
    );
}

#[rstest]
fn every_file_of_the_write_sequence_is_v2_and_overlaps_nothing(
    #[files("../../tests/data/kubelet-checkpoints/write-sequence/**/*.json")] file: PathBuf,
) {
    let state = CpuManagerState::parse(&fs::read(file).unwrap()).unwrap();
    assert_eq!(state.schema, Schema::V2);
    assert_eq!(state.shared_pool(), state.default_cpus);
}

#[rstest]
fn a_single_changed_digit_is_found(
    #[files("../../tests/data/kubelet-checkpoints/**/cpu_manager_state")]
    #[files("../../tests/data/kubelet-checkpoints/**/[0-9]*.json")]
    #[files("../../tests/data/kubelet-checkpoints/hash-strings/cpu-*.json")]
    file: PathBuf,
) {
    let bytes = fs::read(&file).unwrap();
    let text = std::str::from_utf8(&bytes).unwrap();
    // Of V4 only what counts: the string and its checksum.
    let from = text.find("\"data\":").map_or(0, |at| at + 8);
    let digits: Vec<usize> = (from..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).collect();
    assert!(!digits.is_empty());
    for at in digits {
        let mut changed = bytes.clone();
        changed[at] = if changed[at] == b'9' { b'0' } else { changed[at] + 1 };
        assert!(CpuManagerState::parse(&changed).is_err(), "byte {at} of {file:?}");
    }
}

#[rstest]
#[case("", "empty")]
#[case("  \n", "empty")]
#[case("{", "the file is damaged: EOF")]
#[case("null", "not a JSON object")]
#[case(r#"["static","0-3",{},0]"#, "not a JSON object")]
#[case("{}", "missing field `policyName`")]
#[case(
    r#"{"policyName":"static","defaultCpuSet":"0-3","data":"{}"}"#,
    "missing field `dataChecksum`"
)]
#[case(
    r#"{"policyName":"static","defaultCpuSet":"0-3","dataChecksum":1}"#,
    "missing field `data`"
)]
#[case(
    r#"{"policyName":"static","defaultCpuSet":"0-3","data":"{}","dataChecksum":1}"#,
    "stored 1"
)]
#[case(
    r#"{"policyName":"static","defaultCpuSet":"0-3","podEntries":{}}"#,
    "missing field `checksum`"
)]
#[case(
    r#"{"policyName":"static","defaultCpuSet":"0-3","podEntries":{},"checksum":0}"#,
    "stored 0"
)]
#[case(r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1}"#, "stored 1")]
#[case(
    r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":0,"more":[]}"#,
    "unknown field `more`"
)]
#[case(
    r#"{"policyName":"static","defaultCpuSet":"0-3","entries":{"a1":"1","b2":{"c":"2"}}}"#,
    "no known schema"
)]
#[case(r#"{"policyName":"static","defaultCpuSet":"0-3","entries":[]}"#, "no known schema")]
#[case(r#"{"policyName":"static","defaultCpuSet":"0-x"}"#, "defaultCpuSet")]
#[case(
    r#"{"policyName":"static","defaultCpuSet":"0","entries":{"../x":{}}}"#,
    "not a pod UID"
)]
#[case(r#"{"policyName":"static","defaultCpuSet":"0-2147483647"}"#, "beyond the highest")]
fn a_file_in_doubt_is_refused_with_the_reason(#[case] text: &str, #[case] reason: &str) {
    let error = CpuManagerState::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn an_error_never_tells_a_whole_file() {
    let long = "\u{10ffff}\n".repeat(10_000);
    let entry = |pod: &str, container: &str, cpus: &str| serde_json::json!({"policyName": "static", "defaultCpuSet": "", "entries": {pod: {container: cpus}}});
    let files = [
        serde_json::json!({ &long: 1 }),
        serde_json::json!({"policyName": {&long: 1}, "checksum": 0}),
        serde_json::json!({"policyName": 1, "defaultCpuSet": &long, "checksum": long}),
        entry(&long, &long, &long),
        entry(&long, &long, "1"),
        serde_json::json!({"policyName": "static", "defaultCpuSet": "", "entries": {&long: &long}}),
    ];
    for file in files {
        let error = CpuManagerState::parse(file.to_string().as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.len() < 1000 && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_file_of_absurdly_long_lists_is_refused_before_they_fill_the_memory() {
    let file = |containers: usize| {
        let entries: BTreeMap<String, &str> = (0..containers).map(|id| (format!("{id:x}"), "0-8191")).collect();
        let pods = serde_json::json!({"416de7c2-21de-472d-817c-fa9d4306cb7d": entries});
        serde_json::json!({"policyName": "static", "defaultCpuSet": "", "entries": pods}).to_string()
    };
    assert!(CpuManagerState::parse(file(128).as_bytes()).is_ok());
    let refused = Err(CheckpointError::TooManyCpus);
    assert_eq!(CpuManagerState::parse(file(129).as_bytes()), refused);
}

/// A V4 file around this data, its checksum right.
fn v4(data: &str) -> String {
    let checksum = crate::checksum::of_data(data);
    serde_json::json!({
        "policyName": "static", "defaultCpuSet": "0-3", "checksum": 7, "data": data, "dataChecksum": checksum
    })
    .to_string()
}

#[test]
fn the_cpus_of_a_container_before_its_resize_are_read_and_decide_nothing() {
    let state = parse("rebuilt-1.37/06-baselines/cpu_manager_state");
    let uid = pod("3ceda12c-3ee9-40fa-9f42-61428fe654a6");
    assert_eq!(state.baselines[&uid]["instance"].to_string(), "0-1");
    assert_eq!(state.entries[&uid]["instance"].to_string(), "0-1,12-13");
    assert_eq!((state.baselines.len(), state.unknown_keys.len()), (3, 0));
    let same = parse("rebuilt-1.37/02-article/cpu_manager_state");
    let without = CpuManagerState {
        baselines: Entries::new(),
        ..state
    };
    assert_eq!(without, same);
}

const ENTRIES: &str = r#""entries":{"416de7c2-21de-472d-817c-fa9d4306cb7d":{"vm":"2-3"}}"#;

#[rstest]
#[case(r#""slices":{}"#, "slices")]
#[case(r#""baselines":{"x":1}"#, "baselines")]
#[case(
    r#""baselines":{"416de7c2-21de-472d-817c-fa9d4306cb7d":{"vm":{"baseline":"2","more":1}}}"#,
    "baselines"
)]
fn an_unknown_key_beside_entries_that_are_read_whole_is_named(#[case] more: &str, #[case] key: &str) {
    let newer = v4(&format!(
        r#"{{"policyName":"static","defaultCpuSet":"1",{ENTRIES},{more}}}"#
    ));
    let state = CpuManagerState::parse(newer.as_bytes()).unwrap();
    assert_eq!((state.unknown_keys, state.entries.len()), (vec![key.to_owned()], 1));
}

#[rstest]
#[case(r#""slices":{}"#)]
#[case(r#""podEntries":{},"slices":{}"#)]
#[case(r#""entries":{"416de7c2-21de-472d-817c-fa9d4306cb7d":{"vm":{"cpus":"2-3"}}}"#)]
#[case(r#""entries":{"416de7c2-21de-472d-817c-fa9d4306cb7d":{"vm":"2-3"}},"podEntries":{"416de7c2-21de-472d-817c-fa9d4306cb7d":{"more":1}}"#)]
#[case(r#""entries":[],"slices":{}"#)]
fn where_the_entries_may_be_elsewhere_the_file_is_of_no_known_schema(#[case] keys: &str) {
    let known = v4(r#"{"policyName":"static","defaultCpuSet":"1"}"#);
    let state = CpuManagerState::parse(known.as_bytes()).unwrap();
    assert_eq!(state.default_cpus.to_string(), "1"); // not what stands beside
    let newer = v4(&format!(r#"{{"policyName":"static","defaultCpuSet":"1",{keys}}}"#));
    let error = CpuManagerState::parse(newer.as_bytes()).unwrap_err();
    assert!(matches!(&error, CheckpointError::UnknownSchema(_)), "{error}");
    // Beside the string, too.
    let beside = known.replacen('{', r#"{"newer":"","#, 1);
    let error = CpuManagerState::parse(beside.as_bytes()).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::UnknownSchema(text) if text.contains("newer")),
        "{error}"
    );
}

#[test]
fn an_entry_with_cpus_of_the_default_set_is_found() {
    let state = |default: &str| CpuManagerState {
        default_cpus: default.parse().unwrap(),
        entries: parse("k136-gate-off/02-article/cpu_manager_state").entries,
        ..CpuManagerState::absent()
    };
    assert_eq!(state("2-11").overlap(), None);
    let overlapping = state("2-14");
    let (pod, container, cpus) = overlapping.overlap().unwrap();
    let found = (pod.as_str(), container, cpus.to_string());
    assert_eq!(
        found,
        ("3ceda12c-3ee9-40fa-9f42-61428fe654a6", "instance", "12-13".to_owned())
    );
}

#[rstest]
#[case("\"checksum\":0")]
#[case("\"checksum\":3944432841")]
fn checksum_0_is_one_from_before_there_were_any(#[case] checksum: &str) {
    let text = String::from_utf8(read("k136-gate-off/02-article/cpu_manager_state")).unwrap();
    let text = text.replace("\"checksum\":3944432841", checksum);
    let state = CpuManagerState::parse(text.as_bytes()).unwrap();
    let uid = pod("416de7c2-21de-472d-817c-fa9d4306cb7d");
    assert_eq!(state.entries[&uid]["instance"].to_string(), "14-17");
}

#[test]
fn entries_by_container_id_are_refused() {
    let text = br#"{"policyName":"static","defaultCpuSet":"0,3-15","entries":{"5baab67f1daf":"1-2"},"checksum":0}"#;
    assert!(matches!(
        CpuManagerState::parse(text),
        Err(CheckpointError::UnknownSchema(_))
    ));
}

#[rstest]
#[case("k136-gate-on/05a-podlevel-podscope")]
#[case("rebuilt-1.37/05a-podlevel-podscope")]
fn the_pools_of_pods_are_what_several_containers_carry(#[case] name: &str) {
    let state = parse(&path(name));
    let pool = |last: u32| {
        let uid = pod(&format!("33333333-aaaa-4bbb-8ccc-{last:012}"));
        state.pod_shared_pool(&uid, &Uses::new()).map(|cpus| cpus.to_string())
    };
    assert_eq!(pool(1).as_deref(), Some("9-10,73-74"));
    assert_eq!(pool(2), None); // no CPUs of its own
    assert_eq!(pool(3), None); // its init container's CPUs are used again, none are shared
    let uid = pod("33333333-aaaa-4bbb-8ccc-000000000001");
    assert_eq!(state.pod_entries[&uid].to_string(), "1-10,65-74");
    assert!(state.several_share(&uid, &"9-10,73-74".parse().unwrap()));
    assert!(!state.several_share(&uid, &"1-8,65-72".parse().unwrap()));
}
