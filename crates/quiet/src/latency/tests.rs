use rustix::io::Errno;

use super::*;
use crate::order::{Latency, OrderedVm};
use crate::testing::{Call, FakeKernel};
use stelia_cpus::CpuSet;

const RECORD: &str = "latency.json";
const POLICY_FILES: [&str; 3] = ["affected_cpus", "scaling_available_governors", "scaling_governor"];

/// A machine's CPU files with the kernel's checks.
struct Machine(FakeKernel);

/// Four CPUs, of which as many share a policy.
fn machine_with(policy_cpus: u32) -> Machine {
    let machine = Machine(FakeKernel::default());
    machine.put("cpuidle/current_driver", "intel_idle");
    for cpu in 0..4 {
        machine.put(&format!("cpu{cpu}/power/pm_qos_resume_latency_us"), "0");
        let first = cpu / policy_cpus * policy_cpus;
        let link = format!("{CPUS}/cpu{cpu}/cpufreq");
        machine.0.tree().link(&link, &format!("policy{first}"));
        let members: Vec<String> = (first..first + policy_cpus).map(|cpu| cpu.to_string()).collect();
        let values = [members.join(" "), "performance schedutil".into(), "schedutil".into()];
        for (file, value) in POLICY_FILES.iter().zip(values) {
            machine.put(&format!("cpufreq/policy{first}/{file}"), &value);
        }
    }
    machine.0.tree().rule(CPUS, |tree, path, value| {
        let good = match path.rsplit('/').next().unwrap() {
            "scaling_governor" => ["performance", "schedutil"].contains(&value),
            _ => value == "n/a" || value.parse::<i32>().is_ok_and(|number| number >= 0),
        };
        tree.put(path, if good { value } else { return Err(Errno::INVAL) });
        Ok(())
    });
    machine
}

fn machine() -> Machine {
    machine_with(2)
}

impl Machine {
    fn put(&self, path: &str, value: &str) {
        self.0.tree().put(&format!("{CPUS}/{path}"), value);
    }

    fn value(&self, path: &str) -> String {
        self.0.tree().get(&format!("{CPUS}/{path}")).unwrap().to_owned()
    }

    fn latency(&self, cpu: u32) -> String {
        self.value(&format!("cpu{cpu}/power/pm_qos_resume_latency_us"))
    }

    fn governor(&self, policy: &str) -> String {
        self.value(&format!("cpufreq/{policy}/scaling_governor"))
    }

    /// A file that cannot be read now: EBUSY, as those of a policy whose CPUs are all offline.
    fn busy(&self, path: &str) {
        let path = format!("{CPUS}/{path}");
        self.0.tree().fail(Call::Read, &path, Errno::BUSY, None);
    }

    fn carry_out(&self, vms: &[(&str, OrderedVm)]) -> Report {
        let order = Order {
            vms: vms.iter().map(|(pod, vm)| ((*pod).to_owned(), vm.clone())).collect(),
            ..Order::default()
        };
        let mut report = Report::default();
        carry_out(self.0.system(), &order, &mut report);
        report
    }

    /// The only problem after this was ordered: its pod and text.
    fn problem(&self, vms: &[(&str, OrderedVm)]) -> (String, String) {
        let report = self.carry_out(vms);
        let [problem] = &report.problems[..] else {
            panic!("{report:?}")
        };
        (problem.pod.clone(), problem.text.clone())
    }
}

fn vm(list: &str, latency: Option<Latency>, governor: Option<&str>) -> OrderedVm {
    OrderedVm {
        cpus: list.parse::<CpuSet>().unwrap(),
        latency,
        governor: governor.map(str::to_owned),
        ..OrderedVm::default()
    }
}

const LOW: Option<Latency> = Some(Latency::Microseconds(20));

#[test]
fn a_vms_cpus_get_its_latency_and_what_they_had_when_it_ends() {
    let machine = machine();
    machine.put("cpu1/power/pm_qos_resume_latency_us", "100");
    let polling = || ("b", vm("3", Some(Latency::Polling), None));
    let both = [("a", vm("1-2", LOW, None)), polling()];
    let report = machine.carry_out(&both);
    assert_eq!((report.writes, report.problems.len()), (3, 0));
    assert_eq!([1, 2, 3].map(|cpu| machine.latency(cpu)), ["20", "20", "n/a"]);
    assert_eq!(machine.latency(0), "0");
    // Again: nothing is written. One ends: the other's is undisturbed.
    assert_eq!(machine.carry_out(&both), Report::default());
    machine.carry_out(&[polling()]);
    assert_eq!([1, 2, 3].map(|cpu| machine.latency(cpu)), ["100", "0", "n/a"]);
    machine.carry_out(&[]);
    assert_eq!(machine.latency(3), "0");
    assert_eq!(machine.0.tree().saved[RECORD], "{\"latency\":{},\"governor\":{}}");
}

#[test]
fn a_tighter_value_of_another_program_is_never_touched_or_restored() {
    let machine = machine();
    machine.put("cpu2/power/pm_qos_resume_latency_us", "n/a");
    assert_eq!(machine.carry_out(&[("a", vm("2", LOW, None))]), Report::default());
    machine.carry_out(&[]);
    assert_eq!((machine.latency(2).as_str(), machine.0.tree().writes.len()), ("n/a", 0));
    // One that came after ours.
    machine.carry_out(&[("a", vm("3", LOW, None))]);
    machine.put("cpu3/power/pm_qos_resume_latency_us", "2");
    machine.carry_out(&[("a", vm("3", LOW, None))]);
    machine.carry_out(&[]);
    assert_eq!(machine.latency(3), "2");
}

#[test]
fn a_crash_between_record_and_write_is_made_good() {
    let machine = machine();
    let record = "{\"latency\":{\"2\":{\"base\":\"0\",\"ours\":\"20\"}}}";
    machine.0.tree().saved.insert(RECORD.into(), record.into());
    machine.carry_out(&[("a", vm("2", LOW, None))]);
    assert_eq!(machine.latency(2), "20");
    machine.carry_out(&[]);
    assert_eq!(machine.latency(2), "0");
}

#[test]
fn where_the_store_fails_nothing_is_written() {
    let machine = machine();
    machine.0.tree().fail(Call::Save, RECORD, Errno::NOSPC, None);
    let report = machine.carry_out(&[("a", vm("2", LOW, Some("performance")))]);
    assert!(
        report
            .problems
            .iter()
            .any(|one| one.text.contains("write the record latency.json")),
        "{report:?}"
    );
    assert!(machine.0.tree().writes.is_empty());
}

#[test]
fn missing_files_are_one_problem_of_the_vm() {
    let machine = machine();
    for cpu in [2, 3] {
        machine.0.tree().remove(&format!("{CPUS}/cpu{cpu}/power"));
    }
    let (pod, text) = machine.problem(&[("a", vm("1-3", LOW, None))]);
    assert_eq!(pod, "a");
    assert!(text.contains("CPUs 2-3: read /sys/devices/system/cpu/cpu2/"), "{text}");
    assert_eq!(machine.latency(1), "20");
}

#[test]
fn without_a_driver_of_idle_states_nothing_is_written_and_it_is_said() {
    let machine = machine();
    machine.put("cpuidle/current_driver", "none");
    let (_, text) = machine.problem(&[("a", vm("1-3", LOW, None))]);
    assert!(text.contains("no cpuidle driver"), "{text}");
    assert!(machine.0.tree().writes.is_empty());
}

#[test]
fn zero_microseconds_would_loosen_and_is_refused() {
    let machine = machine();
    machine.put("cpu1/power/pm_qos_resume_latency_us", "100");
    machine.problem(&[("a", vm("1", Some(Latency::Microseconds(0)), None))]);
    assert_eq!(machine.latency(1), "100");
}

#[test]
fn a_governor_is_set_for_whole_policies_and_restored() {
    let machine = machine();
    let report = machine.carry_out(&[("a", vm("2-3", None, Some("performance")))]);
    assert_eq!((report.writes, report.problems.len()), (1, 0));
    assert_eq!(
        (machine.governor("policy0"), machine.governor("policy2")),
        ("schedutil".into(), "performance".into())
    );
    let again = machine.carry_out(&[("a", vm("2-3", None, Some("performance")))]);
    assert_eq!(again, Report::default());
    machine.carry_out(&[]);
    assert_eq!(machine.governor("policy2"), "schedutil");
}

#[test]
fn a_policy_that_others_share_and_a_governor_that_is_not_there_are_said() {
    let machine = machine();
    let report = machine.carry_out(&[
        ("a", vm("1-3", None, Some("performance"))),
        ("b", vm("0", None, Some("warp"))),
    ]);
    let texts: Vec<&str> = report.problems.iter().map(|problem| problem.text.as_str()).collect();
    assert!(texts[0].contains("policy0 also has CPUs 0"), "{texts:?}");
    assert!(texts[1].contains("policy0 also has CPUs 1"), "{texts:?}");
    let whole = machine.governor("policy2");
    assert_eq!(whole, "performance", "the whole policy of the VM is set");
    let (_, text) = machine.problem(&[("a", vm("2-3", None, Some("warp")))]);
    assert!(text.contains("policy2 has only performance schedutil"), "{text}");
    assert_eq!(machine.governor("policy2"), "schedutil", "the former one is not kept");
}

#[test]
fn a_governor_that_another_program_set_since_is_not_restored() {
    let machine = machine();
    machine.carry_out(&[("a", vm("2-3", None, Some("performance")))]);
    machine.put("cpufreq/policy2/scaling_governor", "powersave");
    machine.carry_out(&[]);
    assert_eq!(machine.governor("policy2"), "powersave");
}

#[test]
fn without_cpufreq_there_is_one_problem_a_vm() {
    let machine = machine();
    for cpu in 0..4 {
        machine.0.tree().remove(&format!("{CPUS}/cpu{cpu}/cpufreq"));
    }
    let (_, text) = machine.problem(&[("a", vm("0-3", None, Some("performance")))]);
    assert!(text.contains("read /sys/devices/system/cpu/cpu0/cpufreq: "), "{text}");
}

#[test]
fn a_cpu_that_is_offline_takes_no_other_cpu_of_the_vm_its_governor() {
    for what in [&POLICY_FILES[..], &POLICY_FILES[..1], &POLICY_FILES[1..], &[]] {
        // Each CPU has a policy of its own.
        let machine = machine_with(1);
        let order = [("a", vm("1-3", None, Some("performance")))];
        machine.carry_out(&order);
        let all = |cpus: &[u32]| -> Vec<String> {
            let governors = cpus.iter().map(|cpu| machine.governor(&format!("policy{cpu}")));
            governors.collect()
        };
        assert_eq!(all(&[1, 2, 3]), ["performance"; 3]);
        for file in what {
            machine.busy(&format!("cpufreq/policy2/{file}"));
        }
        let link = format!("{CPUS}/cpu2/cpufreq");
        if what.is_empty() {
            machine.0.tree().remove(&link);
        }
        let report = machine.carry_out(&order);
        let pods: Vec<&str> = report.problems.iter().map(|problem| problem.pod.as_str()).collect();
        assert_eq!((report.writes, pods), (0, vec!["a"]), "{what:?}: {report:?}");
        assert_eq!(all(&[1, 2, 3]), ["performance"; 3], "{what:?}");
        // The VM ends while the CPU is offline: the others have theirs back at once, and this one when it is back.
        machine.carry_out(&[]);
        assert_eq!(all(&[1, 3]), ["schedutil"; 2], "{what:?}");
        machine.0.tree().heal();
        machine.0.tree().link(&link, "policy2");
        machine.carry_out(&[]);
        assert_eq!(all(&[1, 2, 3]), ["schedutil"; 3], "{what:?}");
    }
}

#[test]
fn a_latency_that_cannot_be_read_now_is_undone_later_and_an_unread_driver_undoes_nothing() {
    let machine = machine();
    machine.carry_out(&[("a", vm("2-3", LOW, None))]);
    machine.busy("cpuidle/current_driver");
    machine.carry_out(&[("a", vm("2-3", LOW, None))]);
    assert_eq!([2, 3].map(|cpu| machine.latency(cpu)), ["20", "20"]);
    machine.busy("cpu2/power/pm_qos_resume_latency_us");
    machine.carry_out(&[]);
    assert_eq!([2, 3].map(|cpu| machine.latency(cpu)), ["20", "0"]);
    machine.0.tree().heal();
    machine.carry_out(&[]);
    assert_eq!([2, 3].map(|cpu| machine.latency(cpu)), ["0", "0"]);
}
