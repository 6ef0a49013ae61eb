use proptest::prelude::*;

use super::*;

/// A kernel's filter as it evaluates it: `||` of `&&` of comparisons and parentheses.
fn holds(filter: &str, field: &dyn Fn(&str) -> i64) -> bool {
    let (value, rest) = any(filter, field);
    assert_eq!(rest.trim(), "", "{filter}");
    value
}

fn any<'a>(text: &'a str, field: &dyn Fn(&str) -> i64) -> (bool, &'a str) {
    let (mut value, mut rest) = every(text, field);
    while let Some(next) = rest.trim_start().strip_prefix("||") {
        let (other, after) = every(next, field);
        (value, rest) = (value || other, after);
    }
    (value, rest)
}

fn every<'a>(text: &'a str, field: &dyn Fn(&str) -> i64) -> (bool, &'a str) {
    let (mut value, mut rest) = one(text, field);
    while let Some(next) = rest.trim_start().strip_prefix("&&") {
        let (other, after) = one(next, field);
        (value, rest) = (value && other, after);
    }
    (value, rest)
}

fn one<'a>(text: &'a str, field: &dyn Fn(&str) -> i64) -> (bool, &'a str) {
    let text = text.trim_start();
    if let Some(inner) = text.strip_prefix('(') {
        let (value, rest) = any(inner, field);
        return (value, rest.trim_start().strip_prefix(')').unwrap());
    }
    let end = text.find([')', '&', '|']).unwrap_or(text.len());
    let words: Vec<&str> = text[..end].split_whitespace().collect();
    let [name, operator, number] = words[..] else {
        panic!("{text}")
    };
    let (value, number) = (field(name), number.parse::<i64>().unwrap());
    let holds = match operator {
        "==" => value == number,
        "!=" => value != number,
        ">=" => value >= number,
        "<=" => value <= number,
        "<" => value < number,
        ">" => value > number,
        other => panic!("{other}"),
    };
    (holds, &text[end..])
}

fn offered() -> BTreeSet<String> {
    let names = ["local_timer", "reschedule", "thermal_apic"];
    let vectors = names
        .iter()
        .flat_map(|name| [format!("{VECTORS}/{name}_entry"), format!("{VECTORS}/{name}_exit")]);
    let others = [
        SWITCH,
        INTERRUPT_ENTRY,
        INTERRUPT_EXIT,
        SOFTIRQ_ENTRY,
        SOFTIRQ_EXIT,
        NMI,
    ];
    let setup = ["irq_vectors/vector_setup".to_owned(), "irq_vectors/enable".to_owned()];
    vectors.chain(others.map(str::to_owned)).chain(setup).collect()
}

fn target(cpus: &str, own: &[i32]) -> Target {
    Target {
        cpus: cpus.parse().unwrap(),
        own: own.iter().copied().collect(),
        by_thread: false,
    }
}

#[test]
fn the_writes_for_two_cpus() {
    let steps = plan(&target("2-3,6", &[100, 101, 107]), &offered());
    let of = |part: Part| -> Vec<String> {
        let steps = steps.iter().filter(|step| step.part == part);
        let short = |path: &str| path.trim_start_matches(INSTANCE).trim_start_matches(ROOT).to_owned();
        steps
            .map(|step| format!("{} {}", short(&step.path), step.text))
            .collect()
    };
    let cpus = "((CPU >= 2 && CPU <= 3) || CPU == 6)";
    let next = "next_pid != 0 && (next_pid < 100 || next_pid > 101) && next_pid != 107";
    let previous = next.replace("next", "prev");
    let switch = "/events/sched/sched_switch/trigger";
    assert_eq!(
        of(Part::Tasks),
        [format!(
            "{switch} hist:keys=next_comm,common_cpu:size=2048 if {cpus} && {next}"
        )]
    );
    let times = [
        "/dynamic_events s:stelia_run char comm[16]; pid_t pid; u64 ns".to_owned(),
        "/events/synthetic/stelia_run/trigger hist:keys=comm,common_cpu:vals=ns:size=2048".to_owned(),
        format!(
            "{switch} hist:keys=next_pid,common_cpu:stelia_from0=common_timestamp:size=4096:clock=local \
             if {cpus} && {next}"
        ),
        format!(
            "{switch} hist:keys=prev_pid,common_cpu:stelia_ns0=common_timestamp-$stelia_from0:\
             onmatch(sched.sched_switch).stelia_run(prev_comm,prev_pid,$stelia_ns0):size=4096:clock=local \
             if {cpus} && {previous}"
        ),
    ];
    assert_eq!(of(Part::TaskTimes), times);
    // Errors are counted and not timed; what is no interrupt's entry is left alone.
    let vectors = of(Part::Vectors);
    assert_eq!(vectors.len(), 3, "{vectors:#?}");
    assert_eq!(of(Part::VectorTimes).len(), 4);
}

#[test]
fn what_the_kernel_does_not_offer_is_not_asked_for() {
    let steps = plan(&target("2", &[]), &[SWITCH.to_owned()].into());
    let parts: BTreeSet<Part> = steps.iter().map(|step| step.part).collect();
    assert_eq!(parts, [Part::Tasks, Part::TaskTimes].into());
}

proptest! {
    /// Each trigger counts on the CPUs of its part of the target, all together on each exactly once, and own threads never,
    /// unless their numbers are there to leave them out later. No write is longer than the kernel takes.
    #[test]
    fn triggers_count_on_the_targets_cpus_once_and_never_its_own_threads(
        cpus in prop::collection::btree_set(0_u32..4000, 1..400),
        others in prop::collection::vec(0_u32..4100, 8),
        own in prop::collection::btree_set(1_i32..4_194_304, 0..300),
        tasks in prop::collection::vec(0_i32..4_194_304, 8),
    ) {
        let target = Target { cpus: cpus.iter().copied().collect(), own: own.clone(), ..Target::default() };
        let steps = plan(&target, &offered());
        for step in &steps {
            prop_assert!(step.text.len() + 1 < 4096, "{}", step.text.len());
        }
        let filters = |part: Part| -> Vec<&str> {
            let steps = steps.iter().filter(|step| step.part == part);
            steps.filter_map(|step| Some(step.text.split_once(" if ")?.1)).collect()
        };
        let some = cpus.iter().copied().step_by(cpus.len() / 8 + 1);
        for part in [Part::Tasks, Part::Interrupts, Part::Softirqs, Part::Nmis] {
            let filters = filters(part);
            for cpu in some.clone().chain(others.iter().copied()) {
                let field = |name: &str| if name == "CPU" { i64::from(cpu) } else { i64::from(i32::MAX) };
                let counted = filters.iter().filter(|filter| holds(filter, &field)).count();
                prop_assert_eq!(counted, usize::from(cpus.contains(&cpu)));
            }
        }
        let cpu = i64::from(*cpus.iter().next().unwrap());
        let numbered = steps[0].text.contains(",next_pid,");
        let filters = filters(Part::Tasks);
        for task in own.iter().copied().step_by(7).chain(tasks).chain([0]) {
            let field = |name: &str| if name == "CPU" { cpu } else { i64::from(task) };
            let counted = filters.iter().any(|filter| holds(filter, &field));
            prop_assert_eq!(counted, task != 0 && (numbered || !own.contains(&task)));
        }
    }

    /// A variable has one definition, and it comes before what reads it.
    #[test]
    fn variables_are_defined_once_and_before_they_are_read(
        cpus in prop::collection::btree_set(0_u32..4000, 1..600),
    ) {
        let target = Target { cpus: cpus.into_iter().collect(), ..Target::default() };
        let mut defined = BTreeSet::new();
        for step in plan(&target, &offered()) {
            let words = step.text.split(|c: char| !c.is_ascii_alphanumeric() && !"_$=".contains(c));
            for word in words {
                if let Some((name, _)) = word.split_once("=").filter(|(name, _)| name.starts_with("stelia_")) {
                    prop_assert!(defined.insert(name.to_owned()), "{}", name);
                }
                if let Some(read) = word.split('$').nth(1) {
                    prop_assert!(defined.contains(read), "{}", read);
                }
            }
        }
    }
}
