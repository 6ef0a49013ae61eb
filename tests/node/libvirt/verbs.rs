//! The table of libvirt's verbs in `docs/adopt.md`: each works, or is refused in the words that are there.

use super::*;
use crate::support::*;

/// How libvirt says that the kernel refuses a thread its CPUs: they are not in its cgroup's cpuset.
const REFUSED: &str = "cannot set CPU affinity on process";

/// The CPUs that a thread with that name may run on.
fn allowed(launcher: &Launcher, name: &str) -> CpuSet {
    let threads = launcher.pod.threads();
    let [thread] = threads.named(name)[..] else {
        panic!("not one {name}: {threads:#?}")
    };
    thread.allowed.clone()
}

#[test]
fn threads_are_pinned_within_what_is_theirs_and_a_vm_is_stopped_and_reset_where_it_is() {
    configured_on_kvm(RULE, || {
        let launcher = Launcher::start("verbs", 3);
        let [one, two, three] = launcher.cpus();
        let pins = [three, one];
        launcher.create(&Domain {
            emulator: Some(two),
            ..Domain::pinned(&pins)
        });
        let threads = launcher.pod.threads();
        let shared = pool().iter().next().expect("a shared CPU").to_string();
        let (own, spare) = (three.to_string(), two.to_string());

        // vCPUs: a CPU of the vCPUs', no other.
        for cpus in [&shared, &spare] {
            launcher.refuses(&["vcpupin", VM, "0", cpus], REFUSED);
        }
        // Two on one CPU is not what a VM's owner means: the audit puts back the one that came.
        launcher.pin(0, one);
        reconcile();
        let expected: BTreeMap<u32, u32> = [(0, three), (1, one)].into();
        wait_until("back where it was", || seats(&launcher.pod) == expected);
        let info = launcher.does(&["vcpuinfo", VM]);
        assert_eq!(info.matches("VCPU:").count(), 2, "{info}");

        // Everything else: CPUs of float's. In place these are the spare ones alone.
        let refused = [&own].into_iter().chain(launcher.pod.is_in_place().then_some(&shared));
        for cpus in refused {
            launcher.refuses(&["emulatorpin", VM, cpus], REFUSED);
            launcher.refuses(&["iothreadpin", VM, "1", cpus], REFUSED);
        }
        let free = if launcher.pod.is_in_place() { &spare } else { &shared };
        for cpus in [&spare, free] {
            launcher.does(&["emulatorpin", VM, cpus]);
            launcher.does(&["iothreadpin", VM, "1", cpus]);
            assert_eq!(allowed(&launcher, "IO iothread1").to_string(), *cpus);
        }
        let pinned: CpuSet = free.parse().expect("a CPU");
        // Of a list with both the kernel takes what is float's.
        launcher.does(&["emulatorpin", VM, &format!("{free},{own}")]);
        launcher.does(&["iothreadadd", VM, "2"]);
        reconcile();
        assert_eq!(allowed(&launcher, "IO iothread1"), pinned, "it stays there");
        launcher.assert_isolated(&pins);
        launcher.does(&["iothreaddel", VM, "2"]);
        launcher.does(&["iothreaddel", VM, "1"]);
        assert!(launcher.pod.threads().named("IO iothread").is_empty());
        launcher.refuses(&["schedinfo", VM], "cgroup CPU controller is not mounted");

        launcher.does(&["suspend", VM]);
        assert_eq!(launcher.does(&["domstate", VM]), "paused");
        reconcile();
        launcher.assert_isolated(&pins);
        for words in [["resume", VM], ["reset", VM], ["reboot", VM]] {
            launcher.does(&words);
        }
        reconcile();
        launcher.assert_isolated(&pins);
        assert_eq!(launcher.pod.threads().vcpus, threads.vcpus, "the same threads");
    });
}

#[test]
fn a_plugged_vcpu_is_isolated_at_the_next_audit_where_its_pin_in_the_xml_is() {
    configured_on_kvm(RULE, || {
        let launcher = Launcher::start("plugged", 3);
        let [one, two, three] = launcher.cpus();
        let mut domain = Domain {
            most: 3,
            is_linux: true,
            ..Domain::pinned(&[three, two])
        };
        launcher.create(&domain);
        // It gives back a vCPU once it is up.
        topology(&launcher.pod);
        launcher.does(&["setvcpus", VM, "3", "--live"]);
        reconcile();
        // libvirt has not pinned it, so all of them are placed anew. In place it is born on the only spare CPU, which is as good as a pin.
        let plugged = if launcher.pod.is_in_place() {
            [three, two, one]
        } else {
            [one, two, three]
        };
        launcher.until_isolated(&plugged);
        // Now it is where libvirt may pin it.
        launcher.pin(2, plugged[2]);
        launcher.does(&["setvcpus", VM, "2", "--live"]);
        wait_until("the guest has let go of it", || launcher.pod.threads().vcpus.len() == 2);
        reconcile();
        wait_until("two vCPUs are recorded", || recorded_pins(&launcher.pod).len() == 2);
        launcher.until_isolated(&plugged[..2]);
        launcher.does(&["destroy", VM]);
        launcher.until_given_back();

        // The pin of the new one is in the XML: a CPU that is float's before.
        domain.pins.push(one);
        launcher.create(&domain);
        topology(&launcher.pod);
        launcher.does(&["setvcpus", VM, "3", "--live"]);
        reconcile();
        launcher.until_isolated(&[three, two, one]);
    });
}

#[test]
fn a_vm_is_adopted_anew_when_it_is_started_from_what_was_saved_of_it() {
    configured_on_kvm(RULE, || {
        let launcher = Launcher::start("saved", 2);
        let [one, two] = launcher.cpus();
        launcher.does(&["define", &launcher.xml(&Domain::pinned(&[two, one]))]);
        launcher.does(&["start", VM]);
        launcher.until_isolated(&[two, one]);
        launcher.does(&["managedsave", VM]);
        launcher.until_given_back();
        launcher.does(&["start", VM]);
        launcher.until_isolated(&[two, one]);
        assert_eq!(launcher.does(&["domstate", VM]), "running");
        // At once, libvirt may come before its CPUs are given back, and is refused them; later it is not.
        launcher.does(&["destroy", VM]);
        wait_until("it is started once more", || match launcher.virsh(&["start", VM]) {
            Ok(_) => Some(()),
            Err(error) => {
                println!("  {error}");
                assert!(error.contains(REFUSED), "{error}");
                None
            }
        });
        launcher.until_isolated(&[two, one]);
    });
}

#[test]
fn a_vm_migrates_from_one_libvirt_to_another_and_is_isolated_by_its_pins_there() {
    configured_on_kvm(RULE, || {
        let (from, to) = (Launcher::start("from", 2), Launcher::start("to", 2));
        let pins = |launcher: &Launcher| {
            let [one, two] = launcher.cpus();
            [two, one]
        };
        from.create(&Domain::pinned(&pins(&from)));
        // The other side's pins are in the XML that goes with it, as KubeVirt sends them.
        let xml = to.xml(&Domain::pinned(&pins(&to)));
        let data = format!("unix://{}/migration", to.folder);
        let there = ["--desturi", &to.address(), "--migrateuri", &data, "--xml", &xml];
        from.does(&[&["migrate", "--live", "--p2p", VM], &there[..]].concat());
        from.until_given_back();
        to.until_isolated(&pins(&to));
        assert_eq!(to.does(&["domstate", VM]), "running");
        assert_eq!(told_of(ADOPTED, &to.pod).len(), 1);
    });
}

#[test]
fn a_vm_that_nobody_pinned_is_left_alone_until_its_guest_runs() {
    configured_on_kvm(RULE, || {
        let launcher = Launcher::start("unpinned", 2);
        let mut domain = Domain::pinned(&launcher.cpus::<2>());
        domain.pins.clear();
        launcher.does(&["create", "--paused", &launcher.xml(&domain)]);
        let (reason, text) = wait_until("it is refused", || refused(&launcher.pod));
        assert_eq!(reason, "NotStarted", "{text}");
        assert_eq!(launcher.pod.state(), None);
        // libvirt may still pin it where it likes.
        launcher.pin(0, launcher.cpus::<2>()[1]);
        launcher.does(&["resume", VM]);
        launcher.until_isolated(&launcher.cpus::<2>());
    });
}
