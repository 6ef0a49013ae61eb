//! A VM whose number of vCPUs follows the number of its container's CPUs while its guest runs (`docs/resize.md`).

mod agent;
#[cfg(target_arch = "aarch64")]
mod arm64;
mod exchange;
mod refusal;

use std::collections::BTreeSet;
use std::time::Duration;

use stelia_cpus::CpuSet;

use crate::support::*;

/// The Linux guest that says which CPUs it has: [`make_linux`].
pub const INITRAMFS: &str = "/job/guest-resized";
const ROUNDS: usize = 10;
/// On an emulated node a guest under load takes up to some ten seconds to give up a CPU.
const PATIENT: &str = "unplug-timeout-s = 60\n";

/// It works on every CPU, brings one that is plugged online once, as udev's rules do, and says which CPUs it has, with package, core and siblings of
/// each. Words of the kernel's command line are its variables: `agent` starts the guest agent, and with `keeps_cpus` the kernel refuses every unplug.
const INIT: &str = r#"$b mount -t proc proc /proc
[ -z "$keeps_cpus" ] || echo 0 > /sys/firmware/acpi/hotplug/processor/enabled
if [ -n "$agent" ]; then
  $b mount -t devtmpfs dev /dev
  for module in /modules/*; do $b insmod $module; done
  until [ -e /dev/vport0p1 ]; do $b usleep 50000; done
  $b mkdir -p /run
  /usr/sbin/qemu-ga --method virtio-serial --path /dev/vport0p1 --statedir /run --pidfile /run/agent.pid \
    --verbose --logfile /run/agent.log &
fi
for n in 1 2 3 4; do
  while :; do echo x | $b md5sum > /dev/null; done &
done
n=0
while :; do
  n=$((n + 1))
  now=" "
  for cpu in /sys/devices/system/cpu/cpu[1-9]*; do
    number=${cpu##*/cpu}
    case "$known" in *" $number "*) ;; *) echo 1 > $cpu/online ;; esac
    now="$now$number "
  done
  known=$now
  read -r online < /sys/devices/system/cpu/online
  places=
  for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
    t=$cpu/topology
    # A read of one byte at a time, as the shell's, does not read the list of siblings.
    [ -e $t ] && places="$places $($b cat $t/physical_package_id)/$($b cat $t/core_id)/$($b cat $t/thread_siblings_list)"
  done
  [ -z "$agent" ] || echo "AGENT $($b grep -c guest-set-vcpus /run/agent.log) END" > /dev/console
  echo "ALIVE $n $online$places END" > /dev/console
  $b usleep 300000
done
"#;

pub fn make_linux() {
    let (modules, programs) = (["virtio_pci", "virtio_console"], ["/usr/sbin/qemu-ga"]);
    make_initramfs_with(INITRAMFS, INIT, &modules, &programs);
}

const TWO: &str = "2,sockets=1,cores=2,threads=2,maxcpus=4";
const FOUR: &str = "4,sockets=1,cores=2,threads=2,maxcpus=4";

/// QEMU's words for it: 2 vCPUs of 4.
pub fn linux() -> Vec<&'static str> {
    guest(TWO, INITRAMFS, KERNEL_WORDS)
}

fn guest<'a>(smp: &'a str, initramfs: &'a str, words: &'a str) -> Vec<&'a str> {
    let machine = ["-machine", MACHINE, "-smp", smp, "-m", "128"];
    [&machine[..], &boot(initramfs, words)].concat()
}

/// The guest's newest words: its online CPUs, and the package, the core and the siblings of each.
pub fn said(pod: &Pod) -> Option<(CpuSet, Vec<String>)> {
    let text = newest_words(pod, "ALIVE ")?;
    let mut words = text.split(' ').skip(1);
    let online = words.next()?.parse().ok()?;
    Some((online, words.map(str::to_owned).collect()))
}

/// What is known of a VM, for the message of a wait that failed.
fn seen(pod: &Pod) -> String {
    format!(
        ": {:#?}\n{}\n{}",
        pod.threads().vcpus,
        pod.logs(),
        last_of_serial(pod, 3000)
    )
}

fn until<A: Awaited>(pod: &Pod, what: &str, now: impl FnMut() -> A) -> A::Found {
    wait_until_or(what, || seen(pod), now)
}

pub fn until_resized(pod: &Pod, vcpus: usize) {
    until(pod, &format!("{vcpus} vCPUs on {}", pod.exclusive()), || {
        is_isolated(pod, vcpus)
    });
    until_counted(pod, vcpus);
}

pub fn until_counted(pod: &Pod, vcpus: usize) {
    let is_so = |(online, places): &(CpuSet, Vec<String>)| online.len() == vcpus && places.len() == vcpus;
    until(pod, &format!("the guest has {vcpus} CPUs"), || said(pod).filter(is_so));
}

/// What the guest says of its topology: how many packages and cores it has, and the siblings of each CPU.
fn topology(pod: &Pod) -> (usize, usize, Vec<String>) {
    let (_, places) = said(pod).expect("the guest");
    let parts = |place: &String| -> [String; 3] {
        let parts: Vec<String> = place.split('/').map(str::to_owned).collect();
        parts.try_into().unwrap_or_else(|_| panic!("a place: {place}"))
    };
    let places: Vec<[String; 3]> = places.iter().map(parts).collect();
    let packages: BTreeSet<&str> = places.iter().map(|[package, ..]| &**package).collect();
    let cores: BTreeSet<(&str, &str)> = places.iter().map(|[package, core, _]| (&**package, &**core)).collect();
    let siblings = places.iter().map(|[.., siblings]| siblings.clone());
    (packages.len(), cores.len(), siblings.collect())
}

/// The guest has 2 or 4 CPUs, which are one core or two.
pub fn assert_topology(pod: &Pod, vcpus: usize) {
    let siblings = ["0-1", "0-1", "2-3", "2-3"].map(str::to_owned);
    let expected = (1, vcpus / 2, siblings[..vcpus].to_vec());
    assert_eq!(topology(pod), expected, "the guest's topology");
}

/// These CPUs and as many more as make `count`.
pub fn grown(small: &CpuSet, count: usize) -> CpuSet {
    let others = cpus("0-7").difference(small);
    let more = others.iter().filter(|cpu| *cpu > 1).take(count - small.len()).collect();
    small.union(&more)
}

/// For two seconds nobody else is switched in on the VM's CPUs, and no promise is broken.
fn assert_alone(pod: &Pod) {
    record(&pod.exclusive(), Duration::from_secs(2));
    let switches = recorded(&pod.exclusive());
    assert!(!switches.is_empty());
    assert_eq!(foreign(pod, &switches), [], "{switches:#?}");
    wait_until_or("verify finds nothing", || pod.verified().1, || broken(pod).is_empty());
}

/// What `verify` finds wrong but where the memory is: it stays where the guest wrote it while the VM had other CPUs.
fn broken(pod: &Pod) -> Vec<String> {
    let printed = pod.verified().1;
    let failed = printed.lines().filter(|line| line.starts_with("FAIL "));
    let failed = failed.filter(|line| !line.contains(" of its memory is remote "));
    failed.map(str::to_owned).collect()
}

fn until_degraded(pod: &Pod, what: &str, is: impl Fn(&str) -> bool) {
    let degraded = || pod.described()["degraded"].to_string();
    wait_until_or(what, degraded, || is(&degraded()));
}

/// The VM has 2 vCPUs, and gets 2 more and loses them again, ten times; `shrunk` is called after each loss.
fn grows_and_shrinks(mut pod: Pod, mut shrunk: impl FnMut(usize, &Pod)) -> Pod {
    pod.wait_running();
    let small = pod.exclusive();
    let large = grown(&small, 4).to_string();
    until_resized(&pod, 2);
    let first = assert_isolated(&pod, 2);
    for round in 0..ROUNDS {
        // On the CPUs that it has all the time nobody else is switched in at any time, whatever happens to the others.
        let kept = Trace::switches("kept", &small);
        let mut own = own_threads(&pod);
        let entries = Trace::entries("plugged", &cpus("0-7"), "vcpu_id >= 2");
        pod = pod.resize("--cpuset", &large);
        until_resized(&pod, 4);
        // The new ones did not run guest code anywhere else, not even before they were pinned.
        entries.assert_entered_on_own(&pod);
        let now = assert_isolated(&pod, 4);
        // None that was there is another thread.
        let are_there = first.identities().is_subset(&now.identities());
        assert!(are_there, "{first:#?} {now:#?}");
        assert_topology(&pod, 4);
        assert_alone(&pod);
        own.extend(own_threads(&pod));
        pod = pod.resize("--cpuset", &small.to_string());
        until_resized(&pod, 2);
        let now = assert_isolated(&pod, 2);
        assert_eq!(now.identities(), first.identities());
        assert_topology(&pod, 2);
        own.extend(own_threads(&pod));
        let switches = switches(&kept.text());
        assert!(!switches.is_empty());
        assert_eq!(foreign_to(&own, &small, &switches), [], "{switches:#?}");
        shrunk(round, &pod);
    }
    pod
}

#[test]
fn a_guest_grows_and_shrinks_with_its_container() {
    make_linux();
    configured_on_kvm(PATIENT, || {
        grows_and_shrinks(start_on(Accel::Kvm, "grows", "2", &[], &linux()), |_, _| {});
    });
}
