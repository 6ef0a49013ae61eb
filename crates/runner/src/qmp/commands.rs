//! The commands that the runner sends, as qapi's [`Command`]: a name, its arguments, and what comes back.
//!
//! The answers are declared here and slim. Those that qapi generates from QEMU's schema name every CPU target and run
//! state of one QEMU version, and a newer QEMU must not break the start of a guest (`docs/decisions.md`).

use std::collections::BTreeMap;

use qapi::{Command, Empty};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A command without arguments, and its answer.
macro_rules! commands {
    ($($(#[$doc:meta])* $command:ident = $name:literal -> $answer:ty;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Serialize)]
            pub struct $command {}

            impl Command for $command {
                type Ok = $answer;
                const NAME: &'static str = $name;
                const ALLOW_OOB: bool = false;
            }
        )*
    };
}

commands! {
    /// Leaves negotiation; no capability is asked for.
    Capabilities = "qmp_capabilities" -> Value;
    /// Every vCPU, with its thread and place.
    QueryCpusFast = "query-cpus-fast" -> Vec<Vcpu>;
    /// Every I/O thread.
    QueryIothreads = "query-iothreads" -> Vec<Iothread>;
    /// The machine's slots for vCPUs.
    QueryHotpluggableCpus = "query-hotpluggable-cpus" -> Vec<Slot>;
    /// Run state.
    QueryStatus = "query-status" -> Status;
    /// Lets the guest run.
    Cont = "cont" -> Empty;
    /// Presses the guest's power button.
    SystemPowerdown = "system_powerdown" -> Empty;
    /// Ends QEMU. It may be gone before it answers.
    Quit = "quit" -> Empty;
}

/// Lets a migration come in, where QEMU was started with `-incoming defer`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MigrateIncoming<'a> {
    /// Where it comes from.
    pub uri: &'a str,
}

impl Command for MigrateIncoming<'_> {
    type Ok = Empty;
    const NAME: &'static str = "migrate-incoming";
    const ALLOW_OOB: bool = false;
}

/// One vCPU of `query-cpus-fast`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Vcpu {
    /// QEMU's index of it.
    pub cpu_index: u32,
    /// Its thread in this PID namespace.
    pub thread_id: i32,
    /// Where it sits in the guest's topology.
    #[serde(default)]
    pub props: BTreeMap<String, Value>,
}

/// One I/O thread of `query-iothreads`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Iothread {
    /// The id of its `-object iothread`.
    pub id: String,
    /// Its thread in this PID namespace.
    pub thread_id: i32,
}

/// One slot of `query-hotpluggable-cpus`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Slot {
    /// The vCPU in it; none: one could be plugged.
    pub qom_path: Option<String>,
}

/// The answer of `query-status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// `running`, `prelaunch`, `inmigrate`, `paused`…
    pub status: String,
}

impl Status {
    /// Nobody would hear the power button: the guest never ran, has left for another host, or has ended.
    pub fn is_deaf(&self) -> bool {
        let deaf = [
            "prelaunch",
            "inmigrate",
            "postmigrate",
            "shutdown",
            "internal-error",
            "guest-panicked",
        ];
        deaf.contains(&self.status.as_str())
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

    /// What is sent is what the schema that qapi was generated from calls so.
    #[rstest]
    #[case(Capabilities::NAME, qapi::qmp::qmp_capabilities::NAME)]
    #[case(QueryCpusFast::NAME, qapi::qmp::query_cpus_fast::NAME)]
    #[case(QueryIothreads::NAME, qapi::qmp::query_iothreads::NAME)]
    #[case(QueryHotpluggableCpus::NAME, qapi::qmp::query_hotpluggable_cpus::NAME)]
    #[case(QueryStatus::NAME, qapi::qmp::query_status::NAME)]
    #[case(Cont::NAME, qapi::qmp::cont::NAME)]
    #[case(MigrateIncoming::NAME, qapi::qmp::migrate_incoming::NAME)]
    #[case(SystemPowerdown::NAME, qapi::qmp::system_powerdown::NAME)]
    #[case(Quit::NAME, qapi::qmp::quit::NAME)]
    fn a_commands_name_is_that_of_qemus_schema(#[case] ours: &str, #[case] schema: &str) {
        assert_eq!(ours, schema);
    }

    /// A target that QEMU had after these types were generated, and a run state.
    #[test]
    fn a_newer_qemus_words_are_an_error_to_the_generated_types_and_none_to_ours() {
        let vcpu = r#"[{"cpu-index":0,"thread-id":7,"qom-path":"/m","target":"new-in-qemu-99"}]"#;
        assert!(serde_json::from_str::<<qapi::qmp::query_cpus_fast as Command>::Ok>(vcpu).is_err());
        let ours: Vec<Vcpu> = serde_json::from_str(vcpu).unwrap();
        assert_eq!((ours[0].cpu_index, ours[0].thread_id), (0, 7));
        let status = r#"{"running":false,"status":"new-in-qemu-99"}"#;
        assert!(serde_json::from_str::<qapi::qmp::StatusInfo>(status).is_err());
        let ours: Status = serde_json::from_str(status).unwrap();
        assert_eq!(ours.status, "new-in-qemu-99");
    }

    #[test]
    fn a_guest_that_hears_no_power_button_is_told_by_its_run_state() {
        let status = |text: &str| Status { status: text.into() };
        assert!(status("prelaunch").is_deaf() && status("inmigrate").is_deaf() && status("postmigrate").is_deaf());
        assert!(!status("running").is_deaf() && !status("paused").is_deaf());
    }
}
