//! Limits of the container, the scope and the slice.

use super::*;

/// One that is registered, with these limits on its container.
fn limited(limits: Limits) -> Snapshot {
    let mut snapshot = snapshot(vec![instance()]);
    snapshot.first_mut().origin_limits = Some(limits);
    snapshot
}

#[test]
fn limits_of_the_container_and_the_weight_of_all_follow() {
    let mut snapshot = isolated();
    let limits = Limits {
        memory_max: Some(1 << 30),
        pids_max: Some(500),
        cpu_weight: Some(79),
        oom_group: true,
        hugetlb: BTreeMap::from([(HugePage::Mb2, Some(1 << 21))]),
        ..Limits::default()
    };
    snapshot.first_mut().origin_limits = Some(limits.clone());
    // The file appears with the controller.
    snapshot.first_mut().scope_limits.hugetlb.insert(HugePage::Mb2, None);
    settle(&mut snapshot);
    assert_eq!(snapshot.first().scope_limits, limits);
    assert_eq!(snapshot.slice.weight, Some(79));
    assert!(snapshot.slice.controllers.contains("hugetlb"));
    snapshot.instances.clear();
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.weight, Some(100));
}

#[test]
fn nobody_moves_in_before_the_limits_of_huge_pages_are_on_the_scope() {
    let sizes = |limit: u64| BTreeMap::from([(HugePage::Mb2, Some(limit))]);
    let mut snapshot = limited(Limits {
        hugetlb: sizes(1 << 22),
        hugetlb_reserved: sizes(1 << 21),
        ..Limits::default()
    });
    let is_move = |step: &Step| matches!(step, Step::MoveProcess(pid, _) if *pid != 7);
    let enters = |step: &Step| matches!(step, Step::Enter(..));
    let mut rounds = Vec::new();
    for _ in 0..4 {
        let steps = plan(&snapshot, &Policies::default());
        apply(&mut snapshot, &steps);
        let steps: Vec<Step> = steps.into_iter().map(|planned| planned.step).collect();
        rounds.push((steps.iter().any(is_move), steps.iter().any(enters)));
        // The files come with the controller: in this one they come late.
        if rounds.len() == 2 {
            let none = || BTreeMap::from([(HugePage::Mb2, None)]);
            let scope = &mut snapshot.first_mut().scope_limits;
            (scope.hugetlb, scope.hugetlb_reserved) = (none(), none());
        }
    }
    // The files are written in the third round; an instance that waits for them does not float before.
    assert_eq!(rounds, [(false, false), (false, false), (false, false), (true, false)]);
    let scope = &snapshot.first().scope_limits;
    assert_eq!(
        (&scope.hugetlb, &scope.hugetlb_reserved),
        (&sizes(1 << 22), &sizes(1 << 21))
    );
}

#[test]
fn what_is_protected_on_the_slice_is_what_all_have_together() {
    let mut snapshot = isolated();
    let origin = snapshot.first_mut().origin_limits.as_mut().unwrap();
    (origin.memory_min, origin.memory_low) = (1 << 20, 1 << 21);
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.protected, Some((1 << 20, 1 << 21)));
    let scope = &snapshot.first().scope_limits;
    assert_eq!((scope.memory_min, scope.memory_low), (1 << 20, 1 << 21));
    snapshot.first_mut().origin_limits.as_mut().unwrap().memory_low = u64::MAX;
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.protected, Some((1 << 20, u64::MAX)));
    snapshot.instances.clear();
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.protected, Some((0, 0)));
}

#[test]
fn limits_of_devices_and_clamps_are_written_and_taken_away() {
    let mut snapshot = isolated();
    let instance = snapshot.first_mut();
    let clamp = |text: &str| Some(text.to_owned());
    instance.scope_limits.uclamp_min = clamp("0.00");
    instance.scope_limits.uclamp_max = clamp("max");
    let origin = instance.origin_limits.as_mut().unwrap();
    origin.io_max = IoMax::parse("8:0 rbps=1048576\n8:16 wiops=100");
    origin.uclamp_min = clamp("20.00");
    origin.uclamp_max = clamp("80.00");
    let origin = origin.clone();
    let clamped = |step: &Step| matches!(step, Step::Write(_, File::UclampMin, value) if value == "20.00");
    assert_eq!(steps(&snapshot).iter().filter(|step| clamped(step)).count(), 3);
    settle(&mut snapshot);
    assert_eq!(snapshot.first().scope_limits, origin);
    snapshot.first_mut().origin_limits.as_mut().unwrap().io_max = IoMax::parse("8:16 wiops=100 rbps=5");
    let of_devices: Vec<String> = steps(&snapshot).iter().map(Step::to_string).collect();
    assert_eq!(of_devices.len(), 2);
    assert!(
        of_devices[0].contains("8:0 rbps=max wbps=max riops=max wiops=max"),
        "{of_devices:?}"
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.first().scope_limits.io_max.len(), 1);
}
