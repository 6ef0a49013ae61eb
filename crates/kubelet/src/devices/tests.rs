use rstest::rstest;

use super::*;

const GENUINE: &[u8] =
    include_bytes!("../../../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint");
const EMPTY: &[u8] = include_bytes!(
    "../../../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint.empty"
);

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn the_folder_is_kubelets_constant_unless_its_record_is_in_its_root_directory() {
    let root = tempfile::tempdir().unwrap();
    let usual = root.path().join("var/lib/kubelet/device-plugins");
    let k0s = root.path().join("var/lib/k0s/kubelet");
    let changed = k0s.join("device-plugins");
    assert_eq!(plugin_folder(root.path(), &k0s), usual);
    // A folder without a record is of an earlier kubelet, or of another program.
    fs::create_dir_all(&changed).unwrap();
    assert_eq!(plugin_folder(root.path(), &k0s), usual);
    fs::write(changed.join(DEVICE_MANAGER_STATE), "").unwrap();
    assert_eq!(plugin_folder(root.path(), &k0s), changed);
    assert_eq!(
        device_manager_state(root.path(), &k0s),
        changed.join(DEVICE_MANAGER_STATE)
    );
}

/// Pods of device plugins can put anything there.
#[test]
fn only_a_regular_file_of_a_usual_size_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DEVICE_MANAGER_STATE);
    let refused = || {
        let problem = DeviceManagerState::read(&path).unwrap_err();
        assert!(problem.contains(DEVICE_MANAGER_STATE), "{problem}");
        fs::remove_file(&path).unwrap();
        problem
    };
    assert_eq!(DeviceManagerState::read(&path), Ok(None));
    // Nobody writes into it: reading would wait for ever.
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refused().ends_with("it is not a regular file"));
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert!(refused().ends_with("it is not a regular file"));
    fs::File::create(&path).unwrap().set_len(20_000_000_000).unwrap();
    assert!(refused().ends_with("it is larger than 8 MiB"));
    fs::write(&path, "{").unwrap();
    assert!(refused().contains("the file is damaged"));
    fs::write(&path, GENUINE).unwrap();
    assert_eq!(
        DeviceManagerState::read(&path),
        Ok(Some(DeviceManagerState::parse(GENUINE).unwrap()))
    );
}

#[test]
fn a_device_has_the_numa_nodes_of_every_list_that_it_is_in() {
    let entry = DeviceEntry {
        pod: PodUid::parse("ce32ebd2-f905-449e-b74b-4231a84b88e1").unwrap(),
        container: "instance".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        devices: [
            (None, set(&["d"])),
            (Some(0), set(&["a", "b"])),
            (Some(1), set(&["a", "c"])),
        ]
        .into(),
        files: BTreeSet::new(),
    };
    let expected = [
        ("a", [0, 1].into()),
        ("b", [0].into()),
        ("c", [1].into()),
        ("d", NodeSet::new()),
    ];
    assert_eq!(entry.nodes_by_id(), expected.into());
}

#[test]
fn a_genuine_file_is_read_whole() {
    let state = DeviceManagerState::parse(GENUINE).unwrap();
    let entry = |pod, resource: &str, node, ids: &[&str]| DeviceEntry {
        pod: PodUid::parse(pod).unwrap(),
        container: "instance".to_owned(),
        resource: resource.to_owned(),
        devices: [(node, set(ids))].into(),
        files: BTreeSet::new(),
    };
    let (gpu, kvm) = ("nvidia.com/gpu", "devices.kubevirt.io/kvm");
    assert_eq!(
        state.entries,
        [
            entry(
                "ce32ebd2-f905-449e-b74b-4231a84b88e1",
                gpu,
                Some(0),
                &["GPU-1f3a", "GPU-2b4c"]
            ),
            entry("11111111-aaaa-4bbb-8ccc-000000000001", kvm, None, &["kvm7"]),
        ]
    );
    assert_eq!(state.registered[gpu], set(&["GPU-1f3a", "GPU-2b4c", "GPU-9d0e"]));
    assert_eq!(state.registered[kvm], set(&["kvm7", "kvm8"]));
}

#[test]
fn a_genuine_file_of_no_devices_is_read() {
    assert_eq!(DeviceManagerState::parse(EMPTY), Ok(DeviceManagerState::default()));
}

/// The checksum covers every byte of the content.
#[rstest]
#[case("GPU-9d0e", "GPU-9d0f")]
#[case("CgRhYmNk", "CgRhYmNl")]
#[case(r#""-1":["kvm7"]"#, r#""1":["kvm7"]"#)]
#[case(r#""AllocResp":"""#, r#""AllocResp":null"#)]
#[case("2930703416", "2930703417")]
fn a_changed_file_is_refused(#[case] from: &str, #[case] to: &str) {
    let text = String::from_utf8(GENUINE.to_vec()).unwrap();
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text);
    let refused = DeviceManagerState::parse(changed.as_bytes());
    assert!(matches!(refused, Err(CheckpointError::Checksum { .. })), "{refused:?}");
}

#[rstest]
#[case("")]
#[case("[]")]
#[case(r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}}}"#)]
#[case(r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{},"More":1},"Checksum":3467439661}"#)]
fn what_is_no_such_file_is_refused(#[case] text: &str) {
    assert!(DeviceManagerState::parse(text.as_bytes()).is_err());
}

/// kubelet 1.37 adds the boot's id outside of the hashed part.
#[test]
fn a_boot_id_beside_the_data_is_no_other_schema() {
    let text = br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661,"BootID":"7a1c"}"#;
    assert!(DeviceManagerState::parse(text).is_ok());
}

/// Kubernetes 1.19 and before (`devicemanager/checkpoint/checkpoint.go`).
#[test]
fn a_record_of_before_1_20_is_said_to_be_one() {
    let text = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"e49ac32c-22a3-4c8c-8be3-721bd1fd9eaa","ContainerName":"vm","ResourceName":"example.com/nic","DeviceIDs":["a"],"AllocResp":""}],"RegisteredDevices":{}},"Checksum":1}"#;
    let error = DeviceManagerState::parse(text.as_bytes()).unwrap_err();
    assert!(
        error.to_string().contains("as kubelet wrote it before 1.20") && !error.is_damage(),
        "{error}"
    );
}
