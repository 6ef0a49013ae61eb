use std::cell::RefCell;
use std::io;

use super::*;
use crate::files::Store;
use crate::order::{Latency, OrderedVm};
use stelia_cpus::CpuSet;

const EINVAL: i32 = 22;
const EBUSY: i32 = 16;

/// A machine's CPU files with the kernel's checks, and the store.
#[derive(Default)]
struct Machine {
    files: RefCell<BTreeMap<String, String>>,
    links: RefCell<BTreeMap<String, String>>,
    writes: RefCell<Vec<String>>,
    kept: RefCell<Option<String>>,
    /// The store fails.
    full: bool,
    /// Files that cannot be read: EBUSY, as those of a policy whose CPUs are all offline.
    busy: RefCell<Vec<String>>,
}

/// Four CPUs, each two of which share a policy.
fn machine() -> Machine {
    let machine = Machine::default();
    machine.put("cpuidle/current_driver", "intel_idle");
    for cpu in 0..4 {
        machine.put(&format!("cpu{cpu}/power/pm_qos_resume_latency_us"), "0");
        let link = (format!("{CPUS}/cpu{cpu}/cpufreq"), format!("policy{}", cpu / 2 * 2));
        machine.links.borrow_mut().insert(link.0, link.1);
    }
    for (policy, members) in [("policy0", "0 1"), ("policy2", "2 3")] {
        machine.put(&format!("cpufreq/{policy}/affected_cpus"), members);
        machine.put(
            &format!("cpufreq/{policy}/scaling_available_governors"),
            "performance schedutil",
        );
        machine.put(&format!("cpufreq/{policy}/scaling_governor"), "schedutil");
    }
    machine
}

impl Machine {
    fn put(&self, path: &str, value: &str) {
        self.files.borrow_mut().insert(format!("{CPUS}/{path}"), value.into());
    }

    fn latency(&self, cpu: u32) -> String {
        self.files.borrow()[&format!("{CPUS}/cpu{cpu}/power/pm_qos_resume_latency_us")].clone()
    }

    fn governor(&self, policy: &str) -> String {
        self.files.borrow()[&format!("{CPUS}/cpufreq/{policy}/scaling_governor")].clone()
    }

    fn carry_out(&self, vms: &[(&str, OrderedVm)]) -> Report {
        let order = Order {
            vms: vms.iter().map(|(pod, vm)| ((*pod).to_owned(), vm.clone())).collect(),
            ..Order::default()
        };
        let mut report = Report::default();
        let system = System {
            files: self,
            store: self,
        };
        carry_out(system, &order, &mut report);
        report
    }
}

impl Files for Machine {
    fn read(&self, path: &str) -> io::Result<String> {
        if self.busy.borrow().iter().any(|busy| path.contains(busy)) {
            return Err(io::Error::from_raw_os_error(EBUSY));
        }
        let found = self.files.borrow().get(path).map(|value| format!("{value}\n"));
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut files = self.files.borrow_mut();
        let good = match path.rsplit('/').next().unwrap() {
            "scaling_governor" => ["performance", "schedutil"].contains(&value),
            _ => value == "n/a" || value.parse::<i32>().is_ok_and(|number| number >= 0),
        };
        if !good {
            return Err(io::Error::from_raw_os_error(EINVAL));
        }
        *files.get_mut(path).ok_or(io::ErrorKind::NotFound)? = value.into();
        self.writes.borrow_mut().push(path.into());
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        panic!("{path}")
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let found = self.links.borrow().get(path).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        panic!("{path}")
    }
}

impl Store for Machine {
    fn load(&self, _: &str) -> io::Result<Option<String>> {
        Ok(self.kept.borrow().clone())
    }

    fn save(&self, name: &str, value: &str) -> io::Result<()> {
        assert_eq!(name, "latency.json");
        if self.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.kept.replace(Some(value.to_owned()));
        Ok(())
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
    let report = machine.carry_out(&[
        ("a", vm("1-2", LOW, None)),
        ("b", vm("3", Some(Latency::Polling), None)),
    ]);
    assert_eq!((report.writes, report.problems.len()), (3, 0));
    assert_eq!([1, 2, 3].map(|cpu| machine.latency(cpu)), ["20", "20", "n/a"]);
    assert_eq!(machine.latency(0), "0");
    // Again: nothing is written. One ends: the other's is undisturbed.
    let report = machine.carry_out(&[
        ("a", vm("1-2", LOW, None)),
        ("b", vm("3", Some(Latency::Polling), None)),
    ]);
    assert_eq!(report, Report::default());
    machine.carry_out(&[("b", vm("3", Some(Latency::Polling), None))]);
    assert_eq!([1, 2, 3].map(|cpu| machine.latency(cpu)), ["100", "0", "n/a"]);
    machine.carry_out(&[]);
    assert_eq!(machine.latency(3), "0");
    assert_eq!(
        machine.kept.borrow().as_deref(),
        Some("{\"latency\":{},\"governor\":{}}")
    );
}

#[test]
fn a_tighter_value_of_another_program_is_never_touched_or_restored() {
    let machine = machine();
    machine.put("cpu2/power/pm_qos_resume_latency_us", "n/a");
    assert_eq!(machine.carry_out(&[("a", vm("2", LOW, None))]), Report::default());
    machine.carry_out(&[]);
    assert_eq!((machine.latency(2).as_str(), machine.writes.borrow().len()), ("n/a", 0));
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
    machine.kept.replace(Some(record.into()));
    machine.carry_out(&[("a", vm("2", LOW, None))]);
    assert_eq!(machine.latency(2), "20");
    machine.carry_out(&[]);
    assert_eq!(machine.latency(2), "0");
}

#[test]
fn where_the_store_fails_nothing_is_written() {
    let machine = Machine {
        full: true,
        ..machine()
    };
    let report = machine.carry_out(&[("a", vm("2", LOW, Some("performance")))]);
    assert!(
        report
            .problems
            .iter()
            .any(|one| one.text.contains("write the record latency.json")),
        "{report:?}"
    );
    assert!(machine.writes.borrow().is_empty());
}

#[test]
fn missing_files_are_one_problem_of_the_vm() {
    let machine = machine();
    machine
        .files
        .borrow_mut()
        .remove(&format!("{CPUS}/cpu2/power/pm_qos_resume_latency_us"));
    machine
        .files
        .borrow_mut()
        .remove(&format!("{CPUS}/cpu3/power/pm_qos_resume_latency_us"));
    let report = machine.carry_out(&[("a", vm("1-3", LOW, None))]);
    let [problem] = &report.problems[..] else {
        panic!("{report:?}")
    };
    assert_eq!(problem.pod, "a");
    let says = "wake-up latency of CPUs 2-3: read /sys/devices/system/cpu/cpu2/power/pm_qos_resume_latency_us: ";
    assert!(problem.text.starts_with(says), "{problem:?}");
    assert_eq!(machine.latency(1), "20");
}

#[test]
fn without_a_driver_of_idle_states_nothing_is_written_and_it_is_said() {
    let machine = machine();
    machine.put("cpuidle/current_driver", "none");
    let report = machine.carry_out(&[("a", vm("1-3", LOW, None))]);
    assert!(report.problems[0].text.contains("no cpuidle driver"), "{report:?}");
    assert_eq!((report.problems.len(), machine.writes.borrow().len()), (1, 0));
}

#[test]
fn zero_microseconds_would_loosen_and_is_refused() {
    let machine = machine();
    machine.put("cpu1/power/pm_qos_resume_latency_us", "100");
    let report = machine.carry_out(&[("a", vm("1", Some(Latency::Microseconds(0)), None))]);
    assert!(report.problems[0].text.contains("0 microseconds"), "{report:?}");
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
    assert_eq!(
        machine.carry_out(&[("a", vm("2-3", None, Some("performance")))]),
        Report::default()
    );
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
    assert!(
        texts[0].contains("policy0 also has CPUs 0, which are not this VM's"),
        "{texts:?}"
    );
    assert!(texts[1].contains("policy0 also has CPUs 1"), "{texts:?}");
    assert_eq!(
        machine.governor("policy2"),
        "performance",
        "the whole policy of the VM is set"
    );
    let report = machine.carry_out(&[("a", vm("2-3", None, Some("warp")))]);
    assert!(
        report.problems[0]
            .text
            .contains("policy2 has only performance schedutil"),
        "{report:?}"
    );
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
    machine.links.borrow_mut().clear();
    let report = machine.carry_out(&[("a", vm("0-3", None, Some("performance")))]);
    assert_eq!(report.problems.len(), 1);
    assert!(
        report.problems[0]
            .text
            .contains("read /sys/devices/system/cpu/cpu0/cpufreq: "),
        "{report:?}"
    );
}

/// Four CPUs, each with a policy of its own.
fn separate() -> Machine {
    let machine = machine();
    for cpu in 0..4 {
        let policy = format!("policy{cpu}");
        machine.put(&format!("cpufreq/{policy}/affected_cpus"), &cpu.to_string());
        machine.put(
            &format!("cpufreq/{policy}/scaling_available_governors"),
            "performance schedutil",
        );
        machine.put(&format!("cpufreq/{policy}/scaling_governor"), "schedutil");
        machine
            .links
            .borrow_mut()
            .insert(format!("{CPUS}/cpu{cpu}/cpufreq"), policy);
    }
    machine
}

#[test]
fn a_cpu_that_is_offline_takes_no_other_cpu_of_the_vm_its_governor() {
    for what in [
        "cpufreq/policy2/",
        "cpufreq/policy2/affected_cpus",
        "cpufreq/policy2/scaling_",
        "cpu2/cpufreq",
    ] {
        let machine = separate();
        let order = [("a", vm("1-3", None, Some("performance")))];
        machine.carry_out(&order);
        let all = |machine: &Machine| [1, 2, 3].map(|cpu| machine.governor(&format!("policy{cpu}")));
        assert_eq!(all(&machine), ["performance"; 3]);
        let link = machine.links.borrow().clone();
        match what {
            "cpu2/cpufreq" => drop(machine.links.borrow_mut().remove(&format!("{CPUS}/{what}"))),
            _ => machine.busy.borrow_mut().push(what.into()),
        }
        let report = machine.carry_out(&order);
        assert_eq!(report.writes, 0, "{what}: {report:?}");
        assert_eq!(
            (report.problems.len(), report.problems[0].pod.as_str()),
            (1, "a"),
            "{what}: {report:?}"
        );
        assert_eq!(all(&machine), ["performance"; 3], "{what}");
        // The VM ends while the CPU is offline: the others have theirs back at once, and this one when it is back.
        machine.carry_out(&[]);
        assert_eq!(
            [1, 3].map(|cpu| machine.governor(&format!("policy{cpu}"))),
            ["schedutil"; 2],
            "{what}"
        );
        machine.busy.borrow_mut().clear();
        *machine.links.borrow_mut() = link;
        machine.carry_out(&[]);
        assert_eq!(all(&machine), ["schedutil"; 3], "{what}");
    }
}

#[test]
fn a_latency_that_cannot_be_read_now_is_undone_later_and_an_unread_driver_undoes_nothing() {
    let machine = machine();
    machine.carry_out(&[("a", vm("2-3", LOW, None))]);
    machine.busy.borrow_mut().push("cpuidle/current_driver".into());
    machine.carry_out(&[("a", vm("2-3", LOW, None))]);
    assert_eq!([2, 3].map(|cpu| machine.latency(cpu)), ["20", "20"]);
    machine.busy.borrow_mut().push("cpu2/power".into());
    machine.carry_out(&[]);
    assert_eq!([2, 3].map(|cpu| machine.latency(cpu)), ["20", "0"]);
    machine.busy.borrow_mut().clear();
    machine.carry_out(&[]);
    assert_eq!([2, 3].map(|cpu| machine.latency(cpu)), ["0", "0"]);
}
