//! Steliad's services: what the daemon says of interrupts, the ledger and the publisher's file, and the device plugin.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{FlockOperation, flock};
use stelia_api::VM_RESOURCE;
use stelia_api::ledger::LedgerSummary;
use stelia_api::publication::{DIRECTORY, FILE, LOCK};
use stelia_api::publishing::Publishing;
use stelia_api::quiet::{Irqbalance, Quiet, Remaining, RemainingCause};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::devices::DEVICE_MANAGER_STATE;
use stelia_model::{Instance, Usage};

use super::*;

/// The VM has CPUs 1 and 5; interrupts are steered and nothing is left.
fn steered() -> Facts {
    let mut facts = fit();
    facts.irqbalance = true;
    facts.noise = Some(Noise {
        cpus: "1,5".parse().unwrap(),
        ..Noise::default()
    });
    let report = &mut quiet(&mut facts).report;
    (report.interrupts, report.moved, report.irqbalance) = (40, 12, Irqbalance::Informed);
    facts
}

fn quiet(facts: &mut Facts) -> &mut Quiet {
    Arc::make_mut(&mut node(facts).quiet)
}

fn ledger(facts: &mut Facts) -> &mut LedgerSummary {
    Arc::make_mut(&mut node(facts).ledger)
}

fn noise(facts: &mut Facts) -> &mut Noise {
    facts.noise.as_mut().unwrap()
}

fn managed(facts: &mut Facts, count: u64) {
    quiet(facts).report.remaining = vec![Remaining {
        irq: 130,
        name: "nvme0q3".to_owned(),
        cpus: "5".parse().unwrap(),
        why: RemainingCause::Managed,
        count,
        ..Remaining::default()
    }];
}

#[test]
fn a_calm_node_passes_and_says_what_was_done() {
    let facts = steered();
    for check in checks(&facts) {
        assert_eq!(check.finding.outcome, Outcome::Pass, "{check:?}");
    }
}

#[rstest]
#[case::no_answer("steliad-quiet", Outcome::Warn, |f: &mut Facts| {
    f.irqbalance = false;
    quiet(f).problem = Some("steliad-quiet does not answer".to_owned());
})]
#[case::switched_off("irq-steering", Outcome::Note, |f: &mut Facts| {
    f.irqbalance = false;
    quiet(f).steering = "off".to_owned();
})]
#[case::some_remain("irq-steering", Outcome::Warn, |f: &mut Facts| managed(f, 0))]
#[case::irqbalance_not_told("irqbalance", Outcome::Warn, |f: &mut Facts| quiet(f).report.irqbalance = Irqbalance::NotInformed)]
#[case::the_tick("nohz_full", Outcome::Note, |f: &mut Facts| noise(f).timers = 250.0)]
#[case::no_such_kernel("nohz_full", Outcome::Note, |f: &mut Facts| f.cmdline = "nohz_full=1,5".to_owned())]
#[case::rcu("rcu_nocbs", Outcome::Note, |f: &mut Facts| noise(f).rcu = 3.0)]
#[case::rps("rps", Outcome::Note, |f: &mut Facts| {
    noise(f).rps = [("eth0/rx-0".to_owned(), "5".parse().unwrap())].into();
})]
#[case::a_ledger_that_is_off("ledger", Outcome::Note, |f: &mut Facts| ledger(f).enabled = false)]
#[case::a_ledger_that_cannot_be_written("ledger", Outcome::Warn, |f: &mut Facts| ledger(f).problem = Some("no space left".to_owned()))]
#[case::a_ledger_that_is_not_signed("ledger", Outcome::Warn, |f: &mut Facts| ledger(f).key.clear())]
#[case::no_tracing("ledger", Outcome::Note, |f: &mut Facts| f.tracing = false)]
fn what_is_amiss_is_told_and_nothing_else_is(#[case] name: &str, #[case] outcome: Outcome, #[case] change: Change) {
    let mut facts = steered();
    change(&mut facts);
    let checks = vec![assert_only_problem(&facts, name, outcome)];
    assert_eq!(Examined { checks, verbose: false }.failure(), None);
}

#[test]
fn advice_names_the_cpus_that_vms_may_get_and_what_it_would_gain() {
    let mut facts = steered();
    noise(&mut facts).timers = 250.4;
    managed(&mut facts, 17);
    // All CPUs but the reserved ones, 0 and 4.
    for (name, fact, fix) in [
        ("nohz_full", "1,5: 250 ", "nohz_full=1-3,5-7"),
        (
            "managed_irq",
            "17 times on the VMs' CPUs 5: nvme0q3",
            "isolcpus=managed_irq,1-3,5-7",
        ),
    ] {
        let found = named(&facts, name);
        says(&found.fact, &[fact]);
        says(&found.fix, &[fix]);
    }
}

#[test]
fn what_the_command_line_has_is_not_advised() {
    let mut facts = steered();
    (noise(&mut facts).timers, noise(&mut facts).rcu) = (1.5, 2.0);
    facts.nohz_full = "1-3,5-7".parse().unwrap();
    facts.cmdline = "nohz_full=1-3,5-7 isolcpus=managed_irq,1-3,5-7".to_owned();
    managed(&mut facts, 17);
    for name in ["nohz_full", "rcu_nocbs", "managed_irq", "isolcpus"] {
        assert_eq!(named(&facts, name).outcome, Outcome::Pass, "{name}");
    }
    says(&named(&facts, "nohz_full").fact, &["1.5 local timer interrupts"]);
    facts.nohz_full = CpuSet::new();
    for (given, outcome) in [
        ("rcu_nocbs=1-7", Outcome::Pass),
        ("rcu_nocbs=all", Outcome::Pass),
        ("rcu_nocbs=1-N", Outcome::Pass),
        ("rcu_nocbs=1", Outcome::Note),
    ] {
        facts.cmdline = given.to_owned();
        assert_eq!(named(&facts, "rcu_nocbs").outcome, outcome, "{given}");
    }
}

#[test]
fn what_steliad_quiet_has_not_said_is_not_called_calm() {
    let outcomes = |facts: &Facts| [QUIET, "irq-steering", "irqbalance"].map(|name| named(facts, name).outcome);
    let mut facts = fit();
    facts.irqbalance = true;
    *quiet(&mut facts) = Quiet::default();
    assert_eq!(outcomes(&facts), [Outcome::Note, Outcome::Skip, Outcome::Warn]);
    // It has no kubelet yet, so no VM, so it has ordered nothing; then a VM has CPUs, and nothing was reported of them.
    quiet(&mut facts).steering = "shared".to_owned();
    assert_eq!(outcomes(&facts), [Outcome::Pass; 3]);
    facts.noise = Some(Noise::default());
    assert_eq!(outcomes(&facts), [Outcome::Note, Outcome::Skip, Outcome::Pass]);
    quiet(&mut facts).steering = "off".to_owned();
    assert_eq!(outcomes(&facts), [Outcome::Pass, Outcome::Note, Outcome::Warn]);
}

/// A node whose folder has this file, under a lock or not.
fn publishing(text: &str, locked: bool) -> Facts {
    let directory = DIRECTORY.trim_start_matches('/');
    let root = folder(&[(&format!("{directory}/{FILE}"), text)]);
    let lock = File::create(root.path().join(directory).join(LOCK)).unwrap();
    if locked {
        flock(&lock, FlockOperation::LockExclusive).unwrap();
    }
    let mut facts = fit();
    facts.published = Published::read(root.path());
    Arc::make_mut(&mut node(&mut facts).publishing).profile = Some("nrt".to_owned());
    facts
}

#[test]
fn a_published_file_passes_that_a_daemon_says_is_true() {
    const TEXT: &str =
        r#"{"version":1,"node":"n","ready":{"status":true,"reason":"Ready","message":""},"pods":[],"events":[]}"#;
    let of = |facts: &Facts| named(facts, "publish").outcome;
    let mut good = publishing(TEXT, true);
    assert_eq!(of(&good), Outcome::Pass);
    assert_eq!(of(&publishing(TEXT, false)), Outcome::Warn);
    let newer = publishing(r#"{"version":9}"#, true);
    assert_eq!(of(&newer), Outcome::Warn);
    // The daemon's own words come first, and off is no fault.
    let problem = Some("No space left on device".to_owned());
    *Arc::make_mut(&mut node(&mut good).publishing) = Publishing {
        problem,
        profile: Some("nrt".to_owned()),
        written_us: 0,
    };
    assert_eq!(
        said(&good, "publish"),
        (Outcome::Warn, "No space left on device".to_owned())
    );
    node(&mut good).publishing = Arc::default();
    assert_eq!(of(&good), Outcome::Pass);
}

#[test]
fn the_memory_of_scopes_is_summed_and_that_in_place_is_the_pods_own() {
    let mut facts = fit();
    assert_eq!(named(&facts, "vm-memory").outcome, Outcome::Pass);
    let described = facts.described.as_mut().unwrap();
    let scopes = [
        "/stelia.slice/a.scope",
        "/stelia.slice/b.scope",
        "/kubepods.slice/c.scope",
    ];
    for (number, scope) in (1..).zip(scopes) {
        let pod = PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let scope = CgroupPath::parse(scope).unwrap();
        described.node.instances.insert(
            pod.clone(),
            Arc::new(Instance {
                scope,
                ..Instance::default()
            }),
        );
        described.usage.insert(
            pod,
            Usage {
                memory_bytes: number << 30,
                ..Usage::default()
            },
        );
    }
    let (outcome, fact) = said(&facts, "vm-memory");
    assert_eq!(outcome, Outcome::Note);
    assert!(fact.starts_with("3.0 GiB of 2 VMs"), "{fact}");
}

/// A node with kubelet's folder and a running plugin, of which kubelet's record has these healthy devices.
fn registered(healthy: Option<&[&str]>) -> Facts {
    let mut state = DeviceManagerState::default();
    if let Some(healthy) = healthy {
        let ids = healthy.iter().map(|id| (*id).to_owned()).collect();
        state.registered.insert(VM_RESOURCE.to_owned(), ids);
    }
    let mut facts = fit();
    facts.files.devices = Ok(Some(state));
    (facts.has_plugin_folder, facts.plugin) = (Ok(true), true);
    facts
}

fn plugin(facts: &Facts) -> (Outcome, String) {
    said(facts, "device-plugin")
}

#[track_caller]
fn warns(facts: &Facts, part: &str) {
    let (outcome, fact) = plugin(facts);
    assert_eq!(outcome, Outcome::Warn, "{fact}");
    says(&fact, &[part]);
}

#[test]
fn devices_that_kubelet_has_registered_pass_with_their_number() {
    let mut facts = registered(Some(&["vm-0", "vm-1", "vm-2"]));
    let given = DeviceEntry {
        pod: PodUid::parse(POD).unwrap(),
        container: "instance".to_owned(),
        resource: VM_RESOURCE.to_owned(),
        devices: [(None, ["vm-1".to_owned()].into())].into(),
        files: [].into(),
    };
    let other = DeviceEntry {
        resource: "example.com/gpu".to_owned(),
        ..given.clone()
    };
    facts.files.devices.as_mut().unwrap().as_mut().unwrap().entries = vec![given, other];
    let fact = "3 stelia.io/vm registered with kubelet, 1 in kubelet's record of pods (ended ones too)".to_owned();
    for status in [None, Some("registered; 3 devices, healthy".to_owned())] {
        facts.plugin_status = status;
        assert_eq!(plugin(&facts), (Outcome::Pass, fact.clone()));
    }
    // Devices of one NUMA node or another are no hints of this resource.
    assert_eq!(said(&facts, "hint-merge"), said(&fit(), "hint-merge"));
}

/// kubelet does not write its record when a plugin leaves it.
#[test]
fn the_plugins_own_words_count_for_more_than_a_record_that_is_old() {
    let mut facts = registered(Some(&["vm-0"]));
    for status in [
        "not registered: kubelet refuses it; 1 devices, healthy",
        "registered; 1 devices, unhealthy: /dev/kvm does not exist",
        "starting; 1 devices, healthy",
    ] {
        facts.plugin_status = Some(status.to_owned());
        warns(&facts, status);
    }
    let mut facts = registered(Some(&[]));
    facts.plugin_status = Some("registered; 1 devices, healthy".to_owned());
    warns(&facts, "no healthy stelia.io/vm");
}

#[test]
fn without_healthy_devices_the_reason_is_told() {
    let mut facts = registered(Some(&[]));
    node(&mut facts).kubelet_problem = Some("the shared pool is empty".to_owned());
    let problem = node(&mut facts).admission_text();
    warns(&facts, &problem);
    facts.described = None;
    warns(&facts, "steliad does not answer");
    facts.kvm = false;
    warns(&facts, "/dev/kvm does not exist");
    let mut facts = registered(None);
    warns(&facts, "not registered");
    // kubelet wrote no record yet.
    facts.files.devices = Ok(None);
    warns(&facts, "not registered");
    facts.files.devices = Err(unusable("wrong checksum", true));
    warns(&facts, "wrong checksum");
    facts.plugin = false;
    warns(&facts, "not running");
}

#[test]
fn where_kubelet_has_no_folder_for_plugins_none_is_missed() {
    let root = tempfile::tempdir().unwrap();
    let k0s = root.path().join("var/lib/k0s/kubelet");
    let look = || has_plugin_folder(root.path(), &k0s);
    assert_eq!(look(), Ok(false));
    let usual = root.path().join("var/lib/kubelet/device-plugins");
    fs::create_dir_all(&usual).unwrap();
    assert_eq!(look(), Ok(true));
    fs::remove_dir(&usual).unwrap();
    // A distribution's own, by kubelet's record.
    write(&k0s, &format!("device-plugins/{DEVICE_MANAGER_STATE}"), "");
    assert_eq!(look(), Ok(true));
}

#[test]
fn what_may_not_be_looked_at_is_not_called_off() {
    let root = folder(&[("var/lib/kubelet/device-plugins", "")]);
    let kubelet = root.path().join("var/lib/kubelet");
    fs::set_permissions(&kubelet, fs::Permissions::from_mode(0o000)).unwrap();
    let mut facts = fit();
    facts.has_plugin_folder = has_plugin_folder(root.path(), &kubelet);
    fs::set_permissions(&kubelet, fs::Permissions::from_mode(0o700)).unwrap();
    // Root may look.
    if facts.has_plugin_folder != Ok(false) {
        assert_eq!(plugin(&facts).0, Outcome::Note);
    }
}
