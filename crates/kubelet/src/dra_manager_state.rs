//! `dra_manager_state`: the claims of Dynamic Resource Allocation (DRA) that kubelet prepared, since 1.32. Read is only whether it is whole.
//!
//! Source: kubelet's `cm/dra/state/checkpoint.go`. A kubelet that cannot read the file does not start (`newClaimInfoCache` of `cm/dra/claiminfo.go`),
//! unless the feature gate DynamicResourceAllocation is off.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::checksum;
use crate::cpu_manager_state::{CheckpointError, content, json};

/// File name in kubelet's root directory.
pub const DRA_MANAGER_STATE: &str = "dra_manager_state";

/// kubelet takes a missing field for an empty one.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "PascalCase")]
struct File {
    data: String,
    checksum: u32,
}

/// Check the bytes of a file.
///
/// # Errors
/// Every [`CheckpointError`] except those about CPUs and pods.
pub fn check(bytes: &[u8]) -> Result<(), CheckpointError> {
    let file: File = json(content(bytes)?)?;
    checksum::verify(file.checksum, checksum::crc32(&file.data))?;
    json::<IgnoredAny>(file.data.as_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubelet's own tests have this one.
    const DATA: &str = r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","Entries":[{"ClaimUID":"067798be-454e-4be4-9047-1aa06aea63f7","ClaimName":"example","Namespace":"default","PodUIDs":{"139cdb46-f989-4f17-9561-ca10cfb509a6":{}},"DriverState":{"test-driver.cdi.k8s.io":{"Devices":[{"PoolName":"worker-1","DeviceName":"dev-1","RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]}]}}}]}"#;

    fn file(checksum: u32) -> String {
        format!(r#"{{"Data":{},"Checksum":{checksum}}}"#, serde_json::Value::from(DATA))
    }

    #[test]
    fn a_whole_file_is_told_from_a_damaged_one_and_from_one_of_another_schema() {
        assert_eq!(check(file(1_597_924_435).as_bytes()), Ok(()));
        let (wrong, cut) = (file(1_597_924_436), &file(1_597_924_435)[..200]);
        for damaged in ["", "{", "{}", "\0\0", r#"{"Data":"{}"}"#, cut, &wrong] {
            let error = check(damaged.as_bytes()).unwrap_err();
            assert!(error.is_damage(), "{damaged}: {error}");
        }
        // As kubelet wrote it before 1.32.
        let error = check(br#"{"version":"v1","entries":[],"checksum":7}"#).unwrap_err();
        assert!(!error.is_damage(), "{error}");
    }
}
