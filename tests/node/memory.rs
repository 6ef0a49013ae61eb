//! A VM whose guest's memory follows its container's memory limit while it runs (`docs/resize.md`).

use crate::limits::mib;
use crate::support::*;

const MODULES: [&str; 3] = ["virtio_pci", "virtio_mem", "virtio_balloon"];

/// It brings plugged memory online and says how much there is. With `fill=N` in its kernel's words it first makes the host give it N MiB.
const INIT: &str = r#"$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod $module; done
for word in $($b cat /proc/cmdline); do
  case $word in fill=*) $b dd if=/dev/zero of=/fill bs=1M count=${word#fill=}; $b rm /fill ;; esac
done
n=0
while :; do
  n=$((n + 1))
  echo "MEMORY $n $($b awk '/MemTotal/ { print $2 }' /proc/meminfo) END" > /dev/console
  $b usleep 300000
done
"#;

pub const INITRAMFS: &str = "/job/guest-memory";

/// The Linux guest that says how much memory it has.
pub fn make_guest() {
    make_initramfs(INITRAMFS, INIT, &MODULES);
}

/// The words of its kernel, which can give up again what it brings online.
pub fn kernel_words() -> String {
    format!("{KERNEL_WORDS} memhp_default_state=online_movable")
}

/// A VM with these MiB as its limit, and the guest's MiB once it says them.
fn start(name: &str, limit: u64, machine: &str, kernel_words: &str) -> (Pod, u64) {
    make_guest();
    let kernel_words = format!("{} {kernel_words}", self::kernel_words());
    let memory = format!("{limit}M");
    let options = ["--cpus", "2", "--memory", &memory];
    let runner = ["--qmp", "/run/qmp", "--resize-memory", "yes"];
    let cpus = vec!["-machine", MACHINE, "-smp", "2"];
    let qemu = [cpus, words(machine), boot(INITRAMFS, &kernel_words)].concat();
    let pod = Pod::start_qemu(Accel::Kvm, name, &options, &runner, &qemu).running();
    let has = until_said(&pod);
    (pod, has)
}

/// The guest's MiB once it says them.
pub fn until_said(pod: &Pod) -> u64 {
    wait_until_or("the guest says what it has", || seen(pod), || said(pod))
}

/// The guest's newest MemTotal, MiB.
fn said(pod: &Pod) -> Option<u64> {
    let kib: u64 = newest_words(pod, "MEMORY ")?.split(' ').nth(1)?.parse().ok()?;
    Some(kib / 1024)
}

fn seen(pod: &Pod) -> String {
    let (state, max) = (probe_state(pod), pod.scope_file("memory.max"));
    format!(
        ": {state}\n{}\n{}\n{} MiB of at most {max}",
        pod.logs(),
        last_of_serial(pod, 1500),
        current(pod)
    )
}

/// What the VM holds, MiB.
fn current(pod: &Pod) -> u64 {
    pod.scope_file("memory.current").parse::<u64>().unwrap_or(0) >> 20
}

pub fn limit(pod: &Pod, mib: u64) {
    pod.resize("--memory", &format!("{mib}M"));
}

fn until<A: Awaited>(pod: &Pod, what: &str, now: impl FnMut() -> A) -> A::Found {
    wait_until_or(what, || seen(pod), now)
}

pub fn until_it_has(pod: &Pod, mib: u64) {
    let near = |now: u64| (mib..mib + 8).contains(&(now + 4));
    until(pod, &format!("the guest has {mib} MiB"), || {
        said(pod).filter(|now| near(*now))
    });
    until(pod, "the runner says so", || {
        probe_state(pod)["memory-resize"]["outcome"] == "done"
    });
}

pub fn until_limited(pod: &Pod, mib: u64) {
    until(pod, &format!("the scope's limit is {mib} MiB"), || {
        reconcile();
        pod.scope_file("memory.max") == (mib << 20).to_string()
    });
}

#[test]
fn a_guest_with_virtio_mem_grows_and_shrinks_with_its_containers_limit() {
    on_kvm_node(|| {
        let machine = "-m 256M,maxmem=1G -object memory-backend-ram,id=more,size=512M \
                       -device virtio-mem-pci,id=vm0,memdev=more,requested-size=0";
        let (pod, small) = start("plugs", 600, machine, "");
        limit(&pod, 856);
        until_it_has(&pod, small + 256);
        assert_eq!(pod.scope_file("memory.max"), mib(856));
        limit(&pod, 728);
        until_it_has(&pod, small + 128);
        until_limited(&pod, 728);
        // Not what it was booted with.
        limit(&pod, 500);
        until_it_has(&pod, small);
        until_limited(&pod, 500);
        limit(&pod, 600);
        until(&pod, "the limit", || pod.scope_file("memory.max") == mib(600));
        assert_isolated(&pod, 2);
        assert!(pod.scope_file("memory.events").contains("oom_kill 0"));
    });
}

#[test]
fn a_balloon_makes_a_vm_fit_into_a_smaller_limit() {
    on_kvm_node(|| {
        let (pod, large) = start("balloon", 640, "-m 512 -device virtio-balloon-pci", "fill=200");
        let (held, new) = (current(&pod), 320);
        assert!(held > new, "{}", seen(&pod));
        limit(&pod, new);
        // The runner does not wait for the daemon's, which keeps the old limit as long as the VM holds more.
        let text = format!("memory limit was lowered to {} bytes", new << 20);
        until(&pod, "it does not fit, or does already", || {
            pod.shows(&text) || current(&pod) < new
        });
        until_it_has(&pod, large - 320);
        until_limited(&pod, new);
        assert!(!pod.shows(&text));
        limit(&pod, 640);
        until_it_has(&pod, large);
        assert_eq!(pod.scope_file("memory.max"), mib(640));
        assert_isolated(&pod, 2);
        assert!(pod.scope_file("memory.events").contains("oom_kill 0"));
    });
}
