//! The commands that the runner sends, as qapi's [`Command`]: a name, its arguments, and what comes back.
//!
//! The answers are declared here, with the few fields that are used. Those that qapi generates list every CPU target and run
//! state of one QEMU version, and a newer QEMU must not break the start of a guest (`docs/decisions.md`).

use std::collections::BTreeMap;

use qapi::{Command, Empty};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::memory::MemoryDevice;
use super::slots::Slot;

/// A command without arguments, and its answer.
macro_rules! commands {
    ($($command:ident = $name:literal -> $answer:ty;)*) => {
        $(
            #[derive(Debug, Clone, Copy, Serialize)]
            pub(crate) struct $command {}

            impl Command for $command {
                type Ok = $answer;
                const NAME: &'static str = $name;
                const ALLOW_OOB: bool = false;
            }
        )*
    };
}

commands! {
    Capabilities = "qmp_capabilities" -> Value;
    QueryCpusFast = "query-cpus-fast" -> Vec<Vcpu>;
    QueryIothreads = "query-iothreads" -> Vec<Iothread>;
    QueryHotpluggableCpus = "query-hotpluggable-cpus" -> Vec<Slot>;
    QueryStatus = "query-status" -> StatusInfo;
    QueryMigrate = "query-migrate" -> MigrationInfo;
    QueryMemoryDevices = "query-memory-devices" -> Vec<MemoryDevice>;
    QueryMemorySizeSummary = "query-memory-size-summary" -> MemorySize;
    QueryBalloon = "query-balloon" -> BalloonInfo;
    Stop = "stop" -> Empty;
    Cont = "cont" -> Empty;
    SystemPowerdown = "system_powerdown" -> Empty;
    Quit = "quit" -> Empty;
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct MigrateIncoming<'a> {
    pub uri: &'a str,
}

impl Command for MigrateIncoming<'_> {
    type Ok = Empty;
    const NAME: &'static str = "migrate-incoming";
    const ALLOW_OOB: bool = false;
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct DeviceAdd<'a> {
    pub driver: &'a str,
    pub id: &'a str,
    /// Properties of the device.
    #[serde(flatten)]
    pub props: &'a BTreeMap<String, Value>,
}

impl Command for DeviceAdd<'_> {
    type Ok = Empty;
    const NAME: &'static str = "device_add";
    const ALLOW_OOB: bool = false;
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct DeviceDel<'a> {
    /// The device's id or its path in QEMU's object tree.
    pub id: &'a str,
}

impl Command for DeviceDel<'_> {
    type Ok = Empty;
    const NAME: &'static str = "device_del";
    const ALLOW_OOB: bool = false;
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct QomSet<'a> {
    /// In QEMU's object tree.
    pub path: &'a str,
    pub property: &'a str,
    pub value: u64,
}

impl Command for QomSet<'_> {
    type Ok = Empty;
    const NAME: &'static str = "qom-set";
    const ALLOW_OOB: bool = false;
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Balloon {
    /// What the guest is to have, bytes.
    pub value: u64,
}

impl Command for Balloon {
    type Ok = Empty;
    const NAME: &'static str = "balloon";
    const ALLOW_OOB: bool = false;
}

/// The answer of `query-memory-size-summary`, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct MemorySize {
    pub base_memory: u64,
    /// What DIMMs and virtio-mem devices add.
    pub plugged_memory: Option<u64>,
}

/// The answer of `query-balloon`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct BalloonInfo {
    /// What the balloon leaves the guest, bytes.
    pub actual: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Vcpu {
    pub cpu_index: u32,
    /// Thread id in the container's PID namespace.
    pub thread_id: i32,
    /// Its place in the guest's topology.
    #[serde(default)]
    pub props: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Iothread {
    /// The id of its `-object iothread`.
    pub id: String,
    /// Thread id in the container's PID namespace.
    pub thread_id: i32,
}

/// The answer of `query-status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StatusInfo {
    /// `running`, `prelaunch`, `inmigrate`, `paused`…
    pub status: String,
}

impl StatusInfo {
    /// Whether the guest cannot react to its power button: it never ran, has migrated away, or has ended.
    pub fn ignores_power_button(&self) -> bool {
        let states = [
            "prelaunch",
            "inmigrate",
            "postmigrate",
            "shutdown",
            "internal-error",
            "guest-panicked",
        ];
        states.contains(&self.status.as_str())
    }
}

/// The answer of `query-migrate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct MigrationInfo {
    /// `active`, `completed`…; `None` if there was no migration.
    pub status: Option<String>,
}

impl MigrationInfo {
    /// Whether a migration has begun and has not ended.
    pub fn is_under_way(&self) -> bool {
        let ended = ["none", "completed", "failed", "cancelled"];
        self.status.as_deref().is_some_and(|status| !ended.contains(&status))
    }
}

#[cfg(test)]
mod tests {
    use qapi::Execute;
    use rstest::rstest;

    use super::*;

    fn sent<C: Command>(command: C) -> Value {
        serde_json::to_value(Execute::with_id(command, 7u64)).unwrap()
    }

    #[test]
    fn a_command_is_its_name_its_arguments_and_its_number() {
        let none = serde_json::json!({"execute": "query-cpus-fast", "arguments": {}, "id": 7});
        assert_eq!(sent(QueryCpusFast {}), none);
        let uri = serde_json::json!({"execute": "migrate-incoming", "arguments": {"uri": "tcp:h:1"}, "id": 7});
        assert_eq!(sent(MigrateIncoming { uri: "tcp:h:1" }), uri);
    }

    /// The names sent are those of the schema that qapi was generated from.
    #[rstest]
    #[case(Capabilities::NAME, qapi::qmp::qmp_capabilities::NAME)]
    #[case(QueryCpusFast::NAME, qapi::qmp::query_cpus_fast::NAME)]
    #[case(QueryIothreads::NAME, qapi::qmp::query_iothreads::NAME)]
    #[case(QueryHotpluggableCpus::NAME, qapi::qmp::query_hotpluggable_cpus::NAME)]
    #[case(QueryStatus::NAME, qapi::qmp::query_status::NAME)]
    #[case(Stop::NAME, qapi::qmp::stop::NAME)]
    #[case(Cont::NAME, qapi::qmp::cont::NAME)]
    #[case(DeviceAdd::NAME, qapi::qmp::device_add::NAME)]
    #[case(DeviceDel::NAME, qapi::qmp::device_del::NAME)]
    #[case(QueryMemoryDevices::NAME, qapi::qmp::query_memory_devices::NAME)]
    #[case(QueryMemorySizeSummary::NAME, qapi::qmp::query_memory_size_summary::NAME)]
    #[case(QueryBalloon::NAME, qapi::qmp::query_balloon::NAME)]
    #[case(Balloon::NAME, qapi::qmp::balloon::NAME)]
    #[case(QomSet::NAME, qapi::qmp::qom_set::NAME)]
    #[case(MigrateIncoming::NAME, qapi::qmp::migrate_incoming::NAME)]
    #[case(SystemPowerdown::NAME, qapi::qmp::system_powerdown::NAME)]
    #[case(Quit::NAME, qapi::qmp::quit::NAME)]
    fn a_commands_name_is_that_of_qemus_schema(#[case] ours: &str, #[case] schema: &str) {
        assert_eq!(ours, schema);
    }

    /// A CPU target and a run state that QEMU added after these types were generated.
    #[test]
    fn a_newer_qemus_words_are_an_error_to_the_generated_types_and_none_to_ours() {
        let vcpu = r#"[{"cpu-index":0,"thread-id":7,"qom-path":"/m","target":"new-in-qemu-99"}]"#;
        assert!(serde_json::from_str::<<qapi::qmp::query_cpus_fast as Command>::Ok>(vcpu).is_err());
        let ours: Vec<Vcpu> = serde_json::from_str(vcpu).unwrap();
        assert_eq!((ours[0].cpu_index, ours[0].thread_id), (0, 7));
        let status = r#"{"running":false,"status":"new-in-qemu-99"}"#;
        assert!(serde_json::from_str::<qapi::qmp::StatusInfo>(status).is_err());
        let ours: StatusInfo = serde_json::from_str(status).unwrap();
        assert_eq!(ours.status, "new-in-qemu-99");
    }

    #[test]
    fn a_migration_is_under_way_until_it_has_ended() {
        let is_under_way = |text: &str| serde_json::from_str::<MigrationInfo>(text).unwrap().is_under_way();
        for status in ["setup", "active", "postcopy-active", "device", "cancelling"] {
            assert!(is_under_way(&format!(r#"{{"status":"{status}"}}"#)), "{status}");
        }
        for text in ["{}", r#"{"status":"cancelled"}"#, r#"{"status":"completed","ram":{}}"#] {
            assert!(!is_under_way(text), "{text}");
        }
    }

    #[test]
    fn a_guest_that_hears_no_power_button_is_told_by_its_run_state() {
        let status = |text: &str| StatusInfo { status: text.into() };
        assert!(
            status("prelaunch").ignores_power_button()
                && status("inmigrate").ignores_power_button()
                && status("postmigrate").ignores_power_button()
        );
        assert!(!status("running").ignores_power_button() && !status("paused").ignores_power_button());
    }
}
