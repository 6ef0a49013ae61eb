//! The ledger against other witnesses: what it books is what the kernel traced and what `/proc/interrupts` counts, whatever happens to the
//! daemon meanwhile.

mod accounts;
mod container;
pub mod intruder;
mod life;

use std::fs;
use std::path::Path;

use stelia_kernel::clock::now_us;
use stelia_ledger::account::Account;
use stelia_ledger::entry::Closed;

pub use self::accounts::{account, booked_as_traced, difference, more, object, settled, wait_booked};
use self::accounts::{account_by_uid, begin_attribution, devices, wait_read_again};
use self::intruder::Intruder;
use crate::drift::{all_online, online_file};
use crate::quiet::interrupts::{Interrupt, Watch};
use crate::quiet::{NVME, core, read_blocks_on, vm_on};
use crate::support::*;

const DIRECTORY: &str = "/var/lib/stelia/ledger";
/// Limit of the width of a certain count's interval, in switch-ins: what an idle kernel worker that ended in a quiet window leaves.
const MAX_UNCERTAIN_RUNS: u64 = 8;
/// Attempts to have the intruder's runs counted with certainty.
const MAX_INTRUSIONS: usize = 3;
#[test]
fn an_intruder_is_booked_as_often_as_the_kernel_traced_it_and_named() {
    on_node(|| {
        let pod = Pod::vm("booked", 2);
        let threads = assert_isolated(&pod, 2);
        let own = pod.exclusive();
        let cpu = first_of(&own);
        wait_booked(&pod);
        booked_as_traced(&pod, "an intruder", || {
            let intruder = Intruder::in_vcpu(&pod, cpu, "intruder");
            start_recording(&own);
            let attribution = begin_attribution(&pod.uid, 6);
            intruder.intrude();
            let attribution = attribution.join().expect("the thread").expect("an attribution");
            stop_recording();
            let traced = strange_to_vcpus(&recorded(&own), &threads.vcpus);
            let traced = times(&traced);
            println!("  attributed {attribution:?}");
            assert!(traced >= intruder::TIMES, "it did not intrude: {traced}");
            // All but the kernel's bound threads, whose names end with their CPU.
            let named = attribution.tasks.iter();
            let named = named.filter(|one| one.cpu == cpu && !one.name.contains(&format!("/{cpu}")));
            assert_eq!(named.map(|one| one.count).sum::<u64>(), traced);
            assert_eq!((attribution.dropped, attribution.problems), (0, Vec::new()));
            traced
        });
        // It is told as well, with the next audit.
        reconcile();
        wait_until("it is told", || intrusions_told().contains("booked"));
    });
}

/// What the journal says of what else ran on VMs' CPUs; nothing yet is no failure.
fn intrusions_told() -> String {
    let grep = "--grep=something else ran on the CPUs";
    utf8(&output(&["journalctl", "--boot", "--output=cat", grep, "--unit=steliad"]).stdout)
}

/// The kernel's own queue of the NVMe disk fires on the VM's CPU for what others write.
#[test]
fn device_interrupts_are_those_of_proc_interrupts() {
    on_node(|| {
        let queue = Interrupt::named("nvme0q1");
        let own = core(&queue.placed());
        let pod = vm_on("fired", &own);
        assert_isolated(&pod, 2);
        wait_booked(&pod);
        let writer = first_of(&queue.mask().difference(&own));
        let (before, watch) = (account(&pod), Watch::start(&own));
        let [writer, irq] = [writer, queue.irq].map(|number| number.to_string());
        run(&["taskset", "-c", &writer, "python3", "-c", WRITE, NVME, &irq, "200"]);
        let (after, risen) = (account(&pod), watch.risen());
        let booked = devices(&after) - devices(&before);
        println!("  booked {booked}, /proc/interrupts {risen:?}");
        assert_eq!(booked, risen.values().sum::<u64>());
        let of_queue = |of: &Account| of.totals.devices.get("nvme0q1").copied().unwrap_or_default();
        assert_eq!(of_queue(&after) - of_queue(&before), 200);
    });
}

/// Writes the disk's blocks, each after the interrupt of the one before: the processor makes one of two that come while a third is handled.
const WRITE: &str = r#"
import mmap, os, sys, time
path, irq, blocks = sys.argv[1], sys.argv[2] + ":", int(sys.argv[3])
def fired():
    lines = [line.split() for line in open("/proc/interrupts")]
    return sum(int(word) for line in lines if line[0] == irq for word in line[1:] if word.isdigit())
disk, block = os.open(path, os.O_WRONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
for number in range(blocks):
    before, began = fired(), time.monotonic()
    os.pwritev(disk, [block], number * 4096)
    while fired() == before:
        assert time.monotonic() < began + 20, "no interrupt for block %d" % number
        time.sleep(0.001)
"#;

#[test]
fn totals_outlive_the_daemon_and_whatever_else_happens() {
    on_node_undoing(all_online, || {
        let queue = Interrupt::named("nvme0q1");
        let own = core(&queue.placed());
        let pod = vm_on("kept", &own);
        assert_isolated(&pod, 2);
        wait_booked(&pod);
        let reader = first_of(&queue.mask().difference(&own));
        let watch = Watch::start(&own);
        let mut booked = devices(&account(&pod));
        let mut seen = 0;
        let mut more = |what: &str, between: &dyn Fn()| {
            read_blocks_on(reader, NVME, 30);
            between();
            read_blocks_on(reader, NVME, 30);
            let now = devices(&account(&pod));
            let risen = watch.risen().values().sum::<u64>();
            println!("  {what}: booked {booked} → {now}, /proc/interrupts {seen} → {risen}");
            assert_eq!(now - booked, risen - seen, "{what}");
            (booked, seen) = (now, risen);
        };
        more("nothing", &|| ());
        more("daemon killed", &|| {
            kill_daemon();
            pod.wait_state("isolated");
        });
        more("daemon restarted, as an upgrade does", &|| {
            restart("steliad");
        });
        more("kubelet restarted", &|| {
            // It begins without its file and writes the same one again.
            let away = "/var/lib/kubelet/.test-away";
            fs::rename(STATE, away).expect(STATE);
            reconcile();
            replace_state(&fs::read(away).expect(away));
            fs::remove_file(away).expect(away);
            wait_until("isolated still", || is_isolated(&pod, 2));
        });
        more("steliad-quiet killed", &|| {
            output("systemctl kill --signal=KILL steliad-quiet.service");
        });

        // What happens while a CPU is away is not known, and said.
        let before = account(&pod);
        let fired = || watch.risen().values().sum::<u64>();
        let fired_before = fired();
        let cpu = last_of(&own);
        put(online_file(cpu), "0");
        reconcile();
        put(online_file(cpu), "1");
        wait_until("isolated again", || {
            reconcile();
            is_isolated(&pod, 2)
        });
        let after = account(&pod);
        let is_left_out = after.covered_us >= before.covered_us && after.promised_us > after.covered_us;
        assert!(is_left_out, "{after:#?}");
        let whys: Vec<Closed> = after.gaps.iter().map(|gap| gap.why).collect();
        assert!(whys.contains(&Closed::Offline), "{after:#?}");
        assert!(devices(&after) >= devices(&before) && after.totals.own.ns >= before.totals.own.ns);
        let booked = devices(&after) - devices(&before);
        assert!(booked <= fired() - fired_before, "booked twice");

        // A VM that ended is accounted for, too.
        pod.delete(1);
        wait_until("its end is kept", || {
            let ended = account_by_uid(&pod.uid).states.last()?.1 == "gone";
            ended.then_some(())
        });
        let last = account_by_uid(&pod.uid);
        assert!(devices(&last) >= devices(&after), "{last:#?}");
    });
}

/// The count is certain, or the ledger has the bound kernel thread whose end left an interval: on a slow node one ends in each attempt.
pub fn a_contained_vms_intruder_is_booked_and_named(pod: &Pod) {
    wait_booked(pod);
    let mut is_explained = false;
    for _ in 0..MAX_INTRUSIONS {
        let began_us = now_us();
        if is_contained_intruder_booked_with_certainty(pod) {
            return;
        }
        let ended = kernel_threads_ended_since(began_us);
        println!("  not certain: {ended} bound kernel threads ended");
        is_explained |= ended > 0;
    }
    assert!(is_explained, "the count was never certain, and no kernel thread ended");
}

/// How many bound kernel threads of VMs' CPUs ended since then, by the ledger's readings.
fn kernel_threads_ended_since(since_us: u64) -> usize {
    let entries = stelia_ledger::ring::read::entries(Path::new(DIRECTORY), Some(since_us)).expect(DIRECTORY);
    let entries = entries.map(|entry| entry.expect("an entry").0);
    let readings = entries
        .filter(|entry| entry.at >= since_us)
        .flat_map(|entry| entry.readings);
    let threads = readings.flat_map(|reading| reading.bound);
    threads.filter(|(_, counters)| counters.is_none()).count()
}

/// Whether what other tasks ran is known but for a few runs. That it was booked and named is checked in any case.
fn is_contained_intruder_booked_with_certainty(pod: &Pod) -> bool {
    let (own, vcpus) = (pod.exclusive(), pod.threads().vcpus);
    let cpu = first_of(&own);
    start_recording(&own);
    let foreign = || strange_to_vcpus(&recorded(&own), &vcpus);
    let by_intruder = |of: &Switches| {
        let intruder = of.iter().filter(|((_, name, _), _)| name == "intruder");
        intruder.map(|(_, times)| u64::from(*times)).sum::<u64>()
    };
    // Whoever likes runs there, also while the account is read: what is booked is less than what was traced around both readings.
    wait_read_again(pod);
    let before = settled(pod);
    let early = foreign();
    // All that the intruder does has to be within the time that is attributed, on a slow node too.
    let mut attributed = None;
    let mut earlier = 0;
    for seconds in [5, 20, 20, 40, 40, 80] {
        earlier = by_intruder(&foreign());
        let intruder = Intruder::beside(cpu, "intruder");
        let call = begin_attribution(&pod.uid, seconds);
        let began_us = now_us();
        intruder.intrude();
        let ended_us = now_us();
        let answer = call.join().expect("the thread");
        // On a slow node steliad-quiet may not answer the daemon in time.
        let Ok(attribution) = answer.inspect_err(|error| println!("  no attribution: {error}")) else {
            continue;
        };
        // The count that began may have been the daemon's own, which it makes when its counters show another task.
        if attribution.from_us <= began_us && ended_us < attribution.until_us {
            attributed = Some(attribution);
            break;
        }
    }
    let attribution = attributed.expect("no time was enough for the intruder");
    let seen = foreign();
    let (early, late) = (times(&early), times(&seen));
    // On a slow node an account may be answered before the counters are read once more.
    let reached = wait_until("it is in the account", || {
        let now = account(pod);
        (difference(now.totals.other_tasks, before.totals.other_tasks).most >= late - early).then_some(now)
    });
    // An account whose reading takes longer than 2 s ends with the last entry, before the one that was reached.
    let after = wait_until("it still is", || {
        let now = settled(pod);
        (now.promised_us >= reached.promised_us).then_some(now)
    });
    stop_recording();
    let all = times(&foreign());
    let booked = difference(after.totals.other_tasks, before.totals.other_tasks);
    let traced = by_intruder(&seen) - earlier;
    let named = attribution.tasks.iter().filter(|one| one.name == "intruder");
    let named: u64 = named.map(|one| one.count).sum();
    println!("  traced {traced} of {} to {all}, booked {booked:?}", late - early);
    println!("  attributed {:?}", attribution.tasks);
    assert!(traced >= intruder::TIMES, "it did not intrude: {seen:?}");
    assert_eq!(named, traced, "{attribution:#?}");
    assert!(booked.most >= late - early && booked.least <= all, "{after:#?}");
    booked.most - booked.least <= MAX_UNCERTAIN_RUNS
}
