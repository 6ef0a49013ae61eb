//! What an operator does about a reason of degradation, with the CPUs that the reason names.

use stelia_api::ReasonKind;
use stelia_cpus::CpuSet;

use crate::shared::daemon::remedy;

/// The remedy of a reason; where CPUs are offline, a command for the shell that sets them online.
pub(super) fn to_do(kind: ReasonKind, text: &str) -> String {
    let cure = remedy(kind, text);
    let offline = named_cpus(text).filter(|_| kind == ReasonKind::CpusOffline);
    let numbers: Vec<String> = offline
        .iter()
        .flat_map(CpuSet::iter)
        .map(|cpu| cpu.to_string())
        .collect();
    match numbers.as_slice() {
        [] => cure.to_owned(),
        [one] => cure.replace("cpuN", &format!("cpu{one}")),
        many => format!(
            "for n in {}; do {}; done",
            many.join(" "),
            cure.replace("cpuN", "cpu$n")
        ),
    }
}

/// "CPUs 4-5 are offline: …" names 4 and 5.
fn named_cpus(text: &str) -> Option<CpuSet> {
    let (cpus, _) = text.strip_prefix("CPUs ")?.split_once(" are offline")?;
    cpus.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_the_cpus_that_are_offline() {
        let offline = |text| to_do(ReasonKind::CpusOffline, text);
        assert_eq!(
            offline("CPUs 40 are offline"),
            "echo 1 > /sys/devices/system/cpu/cpu40/online"
        );
        assert_eq!(
            offline("CPUs 4-5,9 are offline: the vCPUs run on shared CPUs until one of them is online"),
            "for n in 4 5 9; do echo 1 > /sys/devices/system/cpu/cpu$n/online; done"
        );
        // The words of another daemon, and of another kind.
        assert_eq!(
            offline("CPU forty is offline"),
            "echo 1 > /sys/devices/system/cpu/cpuN/online"
        );
        assert_eq!(
            to_do(ReasonKind::NotDone, "CPUs 4 are offline"),
            ReasonKind::NotDone.cure().text
        );
    }
}
