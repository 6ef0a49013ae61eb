//! Device interrupts stay off the CPUs of VMs: counted, with CPUs that go offline, with irqbalance, with programs killed, and
//! with orders of others. Afterwards every mask is as before (`host::leftovers`, after every test of the suite).
//!
//! What of the node's interrupts may be moved, seen on kernels 6.1 and 6.12: those of the network card, of the serial ports, of
//! NVMe's administration and each disk's configuration. Disk queues are the kernel's: of virtio disks one a CPU, of the NVMe
//! disk one for CPUs 0-3 and one for 4-7. Such a queue fires on one of its CPUs only, whichever asked for the block.

pub mod interrupts;
mod irqbalance;
pub mod load;
pub mod trace;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use stelia_api::quiet::{Irqbalance, Quiet, RemainingCause};
use stelia_cpus::CpuSet;

use self::interrupts::{Interrupt, Masks, Watch, all};
use self::irqbalance::{banned, systemctl};
use self::load::{Card, Load};
pub use self::load::{core, read_blocks_on};
use crate::drift::{all_online, online_file};
use crate::support::*;

/// As its unit calls it.
const PROGRAM: &str = "/usr/libexec/stelia/steliad-quiet";
const SOCKET: &str = "/run/stelia/quiet.sock";
const UNITS: [&str; 2] = ["steliad-quiet.socket", "steliad-quiet.service"];
pub const NVME: &str = "/dev/nvme0n1";
/// EPERM, and what it was before kernel 6.12 at the latest: EIO.
const REFUSED: [i32; 2] = [1, 5];

pub fn quiet() -> Quiet {
    serde_json::from_value(describe()["node"]["quiet"].clone()).expect("node.quiet")
}

/// Have the daemon order once more, as it does at every audit, and wait for the answer.
pub fn round() -> Quiet {
    let earlier = quiet().answered_us;
    reconcile();
    wait_until("steliad-quiet answered", || {
        let now = quiet();
        (now.answered_us > earlier).then_some(now)
    })
}

/// Wait until no mask has these CPUs, and until what fires has followed its mask.
fn wait_steered(vms: &CpuSet) {
    let reaching = || format!("; on {vms}: {:#?}", Masks::now().reaching(vms));
    wait_until_or("every interrupt elsewhere", reaching, || {
        Masks::now().reaching(vms).is_empty()
    });
}

/// The kernel moves an interrupt when it fires next, there where it was: have those fire that do under load, until they left these CPUs.
fn settle(card: &Card, vms: &CpuSet) {
    // What a VM's own threads read while it started.
    sleep(Duration::from_secs(1));
    let ours = [&card.input, &card.output];
    let placed = || format!(": {:?}", ours.map(|one| (one, one.mask(), one.placed())));
    wait_until_or("what fires has moved", placed, || {
        card.hear();
        ours.iter().all(|one| one.placed().is_disjoint(vms))
    });
}

fn assert_silent(watch: &Watch, when: &str) {
    assert_eq!(watch.risen(), BTreeMap::new(), "{when}");
}

pub fn vm_on(name: &str, own: &CpuSet) -> Pod {
    Pod::start_vm(name, 2, &["--cpuset", &own.to_string()]).running()
}

/// The masks as they are now, to be written back when a test has ended.
fn masks_back() -> impl FnOnce() {
    let before = Masks::now();
    move || {
        all_online();
        output("systemctl stop irqbalance");
        before.restore();
    }
}

#[test]
fn the_kernel_says_which_interrupts_it_manages() {
    on_node(|| {
        // Kernel 6.1 does not: there only an attempt shows it.
        let told_by_mode = !read("/proc/sys/kernel/osrelease").starts_with("6.1.");
        for one in all() {
            let refused = one.refusal().is_some_and(|error| REFUSED.contains(&error));
            assert_eq!(refused, one.is_managed(), "{one:?}");
            assert_eq!(one.is_read_only(), refused && told_by_mode, "{one:?}");
        }
    });
}

/// One VM: its CPUs are left by everything that may be moved, what may not is reported, and its end brings every mask back.
pub fn kept_off_and_given_back() {
    let before = Masks::now();
    let pod = Pod::vm("quiet", 2);
    let own = pod.exclusive();
    wait_steered(&own);
    let report = round().report;
    let is_its_queue = |one: &Interrupt| one.is_managed() && one.placed().is_subset(&own);
    let queue = all().into_iter().find(is_its_queue);
    let queue = queue.expect("a disk has a queue for each CPU");
    let remaining = report.remaining.iter().find(|one| one.irq == queue.irq);
    let remaining = remaining.unwrap_or_else(|| panic!("{queue:?} is not in {:#?}", report.remaining));
    assert_eq!((remaining.why, &remaining.name), (RemainingCause::Managed, &queue.name));
    let is_managed = report.remaining.iter().all(|one| one.why == RemainingCause::Managed);
    assert!(is_managed, "{:#?}", report.remaining);
    pod.delete(1);
    wait_until("every mask as before", || Masks::now() == before);
}

/// The card fires on these CPUs under load; once they are those of the pod that this starts, nothing does. The masks before.
fn silent_from_the_start_of<T>(card: &Card, own: &CpuSet, start: impl FnOnce() -> T) -> (Masks, T) {
    // An administrator gave it to the very CPUs.
    card.output.set(own);
    let before = Masks::now();
    let watch = Watch::start(own);
    wait_until("the card fires on these CPUs", || {
        watch.risen().contains_key(&card.output)
    });
    let started = start();
    wait_steered(own);
    settle(card, own);
    let watch = Watch::start(own);
    sleep(Duration::from_secs(5));
    assert_silent(&watch, "under load");
    (before, started)
}

/// A core of each NUMA node becomes a VM's. The first is the one where the kernel placed the NVMe queue of its node: the worst case.
#[test]
fn interrupts_leave_the_cpus_of_vms_and_come_back() {
    let card = Card::up();
    on_node_undoing(masks_back(), || {
        let queue = Interrupt::named("nvme0q1");
        let own = core(&queue.placed());
        let other = cpus("4-5");
        let _load = Load::start();
        let (before, first) = silent_from_the_start_of(&card, &own, || {
            let first = vm_on("first", &own);
            assert_isolated(&first, 2);
            first
        });
        // Nothing of its base is left: the shared CPUs.
        let (mask, pool) = (card.output.mask(), pool());
        assert!(mask.is_subset(&pool), "{mask} beside {pool}");

        the_kernels_own_queue(&queue, &own);
        kernel_threads_born_late(&card, &own);

        let second = vm_on("second", &other);
        let both = own.union(&other);
        wait_steered(&both);
        what_changes_is_repaired(&card, [&first, &second]);
        killed_programs_leave_all_as_it_is([&first, &second]);

        // One ends: the other's CPUs are left alone all the while, and nothing is written twice.
        settle(&card, &both);
        let watch = Watch::start(&other);
        first.delete(1);
        let expected = before.without(&other);
        wait_until("the ended VM's CPUs are anybody's", || {
            Masks::now().differing(&expected).is_empty()
        });
        assert_eq!((round().report.writes, Masks::now().reaching(&other)), (0, Vec::new()));
        assert_silent(&watch, "while the other VM ended");
        assert_isolated(&second, 2);

        restored_by_hand(&before, &other);
        second.delete(1);
        wait_until("every mask as before", || Masks::now() == before);
        wait_until("nothing is said to remain", || quiet().report.remaining.is_empty());
    });
}

/// The CPUs of a container whose own cgroup is the partition, under the same load.
#[test]
fn interrupts_leave_the_cpus_of_a_container() {
    let card = Card::up();
    on_node_undoing(masks_back(), || {
        configure(DATABASES);
        let _load = Load::start();
        let (before, pod) = silent_from_the_start_of(&card, &cpus("2-3"), || {
            let pod = database("quiet", "runc", &["--cpuset", "2-3"]);
            until_partition(&pod, "under load");
            pod
        });
        pod.delete(0);
        wait_until("every mask as before", || Masks::now() == before);
    });
}

/// It fires on the VM's CPU for what others read: reported, and left as it is.
fn the_kernels_own_queue(queue: &Interrupt, own: &CpuSet) {
    let (mask, watch) = (queue.mask(), Watch::start(own));
    let reader = first_of(&mask.difference(own));
    // A look of the daemon's own may come in the midst of it, and count the rest by itself.
    let told = wait_until("told, with all that fired", || {
        read_blocks_on(reader, NVME, 50);
        let report = round().report;
        let told = report.remaining.into_iter().find(|one| one.irq == queue.irq);
        let told = told.unwrap_or_else(|| panic!("{queue:?} is not told"));
        assert_eq!((told.why, told.name.as_str()), (RemainingCause::Managed, "nvme0q1"));
        (told.count >= 50).then_some(told)
    });
    assert!(told.cpus.is_subset(own), "{told:?}");
    assert_eq!(watch.risen().keys().collect::<Vec<_>>(), [queue]);
    assert_eq!(queue.mask(), mask);
    // What is left makes the command fail, so that a script sees it.
    let (said, _) = printed("steliactl --json noise");
    let mut sources = said["sources"].as_array().expect("a list").iter();
    let left = sources.find(|one| one["source"] == *format!("irq {}", queue.irq));
    assert_eq!(left.expect("nvme0q1")["reason"], "managed");
}

/// The kernel makes them after the partition, and up to 6.13 for all CPUs.
fn kernel_threads_born_late(card: &Card, own: &CpuSet) {
    let threaded = format!("/sys/class/net/{}/threaded", card.name);
    put(&threaded, "1");
    let late = || processes_named("napi/");
    wait_until("threads for the card", || !late().is_empty());
    round();
    for one in late() {
        assert!(one.allowed.is_disjoint(own) && !one.allowed.is_empty(), "{one:?}");
    }
    put(&threaded, "0");
}

/// By a program, and by the kernel when a CPU goes and comes: the card's driver then gives its interrupts to all CPUs.
fn what_changes_is_repaired(card: &Card, vms: [&Pod; 2]) {
    let both = vms[0].exclusive().union(&vms[1].exclusive());
    card.input.set(&cpus("0-7"));
    assert!(round().report.writes > 0);
    assert_eq!(Masks::now().reaching(&both), Vec::<String>::new());
    // What is right is left alone.
    assert_eq!(round().report.writes, 0);

    let of_vm = vms[1].exclusive().iter().last().expect("a CPU");
    let shared = last_of(&pool());
    for cpu in [of_vm, shared] {
        for state in ["0", "1"] {
            put(online_file(cpu), state);
            round();
            wait_steered(&both);
        }
        wait_until("both isolated again", || {
            reconcile();
            vms.iter().all(|pod| is_isolated(pod, 2))
        });
    }
    round();
    wait_steered(&both);
}

/// Masks are the kernel's: they stay. The programs find what they did, and change nothing.
fn killed_programs_leave_all_as_it_is(vms: [&Pod; 2]) {
    let ours = Masks::now();
    // It may have ended by itself: it is there for an order.
    output("systemctl kill --signal=KILL steliad-quiet.service");
    kill_daemon();
    assert_eq!(Masks::now(), ours);
    vms.iter().for_each(|pod| pod.wait_state("isolated"));
    round();
    assert_eq!(Masks::now(), ours);
}

/// What the package's removal does. The daemon, which would have it repaired, stands still meanwhile.
fn restored_by_hand(before: &Masks, vms: &CpuSet) {
    let stopped = StoppedDaemon::stop();
    // Two must not write at a time.
    run("systemctl stop steliad-quiet.service");
    let restored = output(&[PROGRAM, "--restore"]);
    let masks = Masks::now();
    drop(stopped);
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(masks.differing(before), Vec::<String>::new());
    round();
    wait_steered(vms);
}

/// irqbalance starts before and after a VM, and forgets what it was told. It moves interrupts by itself, to where it may.
#[test]
fn beside_irqbalance_nothing_fires_on_a_vms_cpus_for_a_minute() {
    let card = Card::up();
    on_node_undoing(masks_back(), || {
        systemctl("start");
        wait_until("it bans nothing", || banned()?.is_empty().then_some(()));
        let _load = Load::start();
        let pod = Pod::vm("quiet", 2);
        let own = pod.exclusive();
        let told = || {
            // For some seconds in each scan it hears nobody.
            wait_until("it is told", || round().report.irqbalance == Irqbalance::Informed);
            wait_until("it bans the VM's CPUs", || (banned()? == own).then_some(()));
        };
        wait_steered(&own);
        settle(&card, &own);
        let (watch, began) = (Watch::start(&own), Instant::now());
        told();
        for verbs in [&["restart"][..], &["stop", "start"]] {
            verbs.iter().for_each(|verb| systemctl(verb));
            told();
        }
        // What it did meanwhile is left: it does not reach the VM.
        round();
        wait_steered(&own);
        sleep(Duration::from_secs(60).saturating_sub(began.elapsed()));
        assert_silent(&watch, "in a minute");
        assert_isolated(&pod, 2);
        pod.delete(1);
        wait_until("it bans nothing again", || banned()?.is_empty().then_some(()));
    });
}

/// What root sends, as whoever it likes; the answer.
fn order(text: &str) -> String {
    let mut stream = UnixStream::connect(SOCKET).expect(SOCKET);
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).expect("a time limit");
    // It may be closed before all is sent.
    let _ = stream.write_all(format!("{text}\n").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    utf8(&answer)
}

fn come_back() {
    output(&[&["systemctl", "unmask", "--runtime"], &UNITS[..]].concat());
    output(&["systemctl", "start", UNITS[0]]);
}

#[test]
fn only_the_daemon_orders_and_it_works_without_steliad_quiet() {
    on_node_undoing(come_back, || {
        let pod = Pod::vm("quiet", 2);
        let own = pod.exclusive();
        wait_steered(&own);
        let ours = Masks::now();
        nobody_else_orders(&pod);
        assert_reaches_neither_bus_nor_systemd("steliad-quiet.service");
        assert_eq!(Masks::now(), ours);
        assert_eq!(round().report.writes, 0);
        a_wrong_vm_is_left_out(&pod);

        for unit in UNITS {
            output(&["systemctl", "mask", "--runtime", "--now", unit]);
        }
        reconcile();
        let problem = wait_until("the daemon says so", || quiet().problem);
        // That alone is no disturbance: only interrupts that fire make the command fail.
        let (told, _) = printed("steliactl --json noise");
        assert_eq!(told["problem"], problem.as_str(), "{told}");
        let second = Pod::vm("second", 2);
        assert_isolated(&second, 2);
        assert_isolated(&pod, 2);
        // What was done before holds.
        assert_eq!(Masks::now(), ours);

        come_back();
        assert_eq!(round().problem, None);
        wait_steered(&own.union(&second.exclusive()));
    });
}

/// What a process that got there is answered.
fn from_the_daemons_cgroup(order: &str) -> String {
    let inside = "echo $$ > /sys/fs/cgroup/system.slice/steliad.service/cgroup.procs";
    let script = format!("{inside} && echo '{order}' | socat -t 600 - UNIX-CONNECT:{SOCKET}");
    let answer = output(&["sh", "-c", &script]);
    utf8(&answer.stdout)
}

/// CPUs that are not those of a record, and a VM that is none, are left out.
fn a_wrong_vm_is_left_out(pod: &Pod) {
    for uid in [pod.uid.as_str(), "00000000-0000-0000-0000-000000000000"] {
        let wrong =
            format!(r#"{{"order": {{"steer": true, "shared": "0-3", "vms": {{"{uid}": {{"cpus": "4-7"}}}}}}}}"#);
        let answer = from_the_daemons_cgroup(&wrong);
        assert_says(&answer, &[r#""left_out":{""#, uid]);
    }
    round();
    wait_steered(&pod.exclusive());
}

/// Not a user, not root's shell, not a pod, and not a process that got into the daemon's cgroup.
fn nobody_else_orders(pod: &Pod) {
    let connect = format!("UNIX-CONNECT:{SOCKET}");
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let refused = output(&[&user[..], &["socat", "-u", "OPEN:/dev/null", &connect]].concat());
    assert_fails(&refused, "Permission denied");

    let undo = r#"{"order": {"steer": true, "shared": "0-7", "vms": {}}}"#;
    assert_eq!(order(undo), "", "root's shell was answered");
    let send = format!("echo '{undo}' | socat -t 600 - {connect}");
    let answer = pod.try_exec(&["sh", "-c", &send]);
    assert!(!utf8(&answer.stdout).contains("done"), "{answer:?}");

    // What no daemon orders; the VM's own CPUs as everybody's; a field that is not there.
    let (uid, own) = (pod.uid.as_str(), pod.exclusive());
    for wrong in [
        format!(r#"{{"steer": true, "shared": "0-7", "vms": {{"{uid}": {{"cpus": "{own}"}}}}}}"#),
        r#"{"steer": true, "shared": "0-3", "vms": {"../x": {"cpus": "4-7"}}}"#.to_owned(),
        r#"{"steer": true, "shared": "0-3", "write": "/proc/irq/1/smp_affinity"}"#.to_owned(),
    ] {
        let answer = from_the_daemons_cgroup(&format!(r#"{{"order": {wrong}}}"#));
        assert!(answer.contains("refused"), "{answer}");
    }
}
