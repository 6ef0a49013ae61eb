//! A Linux guest that works its devices: it reads from its disks on each of its CPUs, asks the other end of its cards' wire for answers, and tells
//! on its serial line what its own kernel counts.

use std::collections::BTreeMap;

use serde_json::json;

use super::devices::{CARD, DISK, Given};
use crate::support::*;

pub const INITRAMFS: &str = "/job/vfio-initramfs";
/// The guest's memory in MiB, all of which VFIO pins.
pub const MEMORY_MIB: u64 = 192;

const INIT: &str = r#"$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod $module; done 2> /dev/console
# Devices come and go.
reads() {
  while :; do
    for disk in /dev/nvme*n1; do
      [ -b $disk ] && $b taskset $1 $b dd if=$disk of=/dev/null bs=4096 count=16 iflag=direct 2> /dev/null 
    done
    $b usleep 20000
  done
}
asks() {
  while :; do
    for card in /sys/class/net/eth*; do
      [ -e $card ] || continue
      card=${card##*/}
      $b ifconfig $card 10.0.2.15 up
      $b ping -c 1 -W 2 -I $card 10.0.2.2 > /dev/null 2>&1 && echo "ANSWER $card" > /dev/console
    done
    $b usleep 200000
  done
}
reads 1 &
reads 2 &
asks &
n=0
while :; do
  n=$((n + 1))
  # The guest's own balancing: the card's queue goes from one vCPU to the other.
  mask=$((n % 4 < 2 ? 1 : 2))
  for irq in $($b awk '$NF == "eth0-rx-0" { print $1 + 0 }' /proc/interrupts); do echo $mask > /proc/irq/$irq/smp_affinity; done
  $b awk -v n=$n '$NF ~ /^(nvme|eth)/ { print "IRQ", $NF, $2, $3 } END { print "SEEN", n }' /proc/interrupts > /dev/console
  $b sleep 1
done
"#;

/// A VM with 2 vCPUs on these CPUs and `devices`, for which its pod asks. `memory`: QEMU's words for where the guest's memory is taken.
pub fn start(name: &str, cpus: &str, devices: &[Given], memory: &str) -> Pod {
    start_with(name, cpus, devices, devices, memory)
}

/// The same with only some of them in the guest.
pub fn start_with(name: &str, cpus: &str, devices: &[Given], plugged: &[Given], memory: &str) -> Pod {
    let words = |device: &Given| device_words(device, &format!("host={}", device.address));
    let words = plugged.iter().flat_map(|device| ["-device".to_owned(), words(device)]);
    start_qemu(name, cpus, devices, memory, &[], &words.collect::<Vec<_>>())
}

/// QEMU with more options of the runner, and these words that give the guest its devices.
pub fn start_qemu(name: &str, cpus: &str, devices: &[Given], memory: &str, runner: &[String], more: &[String]) -> Pod {
    needs_kvm();
    make();
    let options = options(cpus, devices);
    let object = format!("memory-backend-ram,id=ram,size={MEMORY_MIB}M{memory}");
    let machine = format!("-smp 2 -m {MEMORY_MIB} -object {object} -machine memory-backend=ram");
    let kernel = boot(INITRAMFS, KERNEL_WORDS);
    let words = [&words(&machine)[..], &kernel, &OTHER, &texts(more)];
    let runner = [&["--qmp", "/run/qmp"], &texts(runner)[..]].concat();
    Pod::start_qemu(Accel::Kvm, name, &texts(&options), &runner, &words.concat()).running()
}

pub fn texts(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

pub fn make() {
    make_initramfs(INITRAMFS, INIT, &["igb", "nvme"]);
}

/// A pod's, which asks for these devices. VFIO counts what it pins against RLIMIT_MEMLOCK, from which the capability frees.
pub fn options(cpus: &str, devices: &[Given]) -> Vec<String> {
    let mut options = ["--cpuset", cpus, "--cap", "IPC_LOCK"].map(str::to_owned).to_vec();
    for kind in [CARD, DISK] {
        let count = devices.iter().filter(|one| one.kind == kind).count();
        if count > 0 {
            options.extend(["--resource".to_owned(), format!("{}={count}", kind.resource)]);
        }
    }
    options
}

/// Has the guest give it up, until QEMU has.
pub fn unplug(pod: &Pod, device: &Given) {
    let id = device_id(device);
    qmp(
        pod,
        &json!({"execute": "device_del", "arguments": {"id": id}}).to_string(),
    );
    let list = || execute(pod, "qom-list", &json!({"path": "/machine/peripheral"})).to_string();
    wait_until("QEMU has no such device", || !list().contains(&format!("\"{id}\"")));
}

pub fn plug(pod: &Pod, device: &Given) {
    let place = json!({"driver": "vfio-pci", "host": device.address, "id": device_id(device)});
    execute(pod, "device_add", &place);
}

/// Its name in QEMU: its kind and NUMA node.
pub fn device_id(device: &Given) -> String {
    format!("{}{}", device.kind.id, device.node)
}

/// As QEMU's option has it, with these words for what it is.
pub fn device_words(device: &Given, what: &str) -> String {
    let without_rom = if device.kind == CARD { ",romfile=" } else { "" };
    format!("vfio-pci,{what},id={}{without_rom}", device_id(device))
}

/// What the guest's kernel counted when it last told: by the interrupt's name, how often it fired on each vCPU.
pub type Counts = BTreeMap<String, [u64; 2]>;

/// The last number that the guest told, and what it counted then.
pub fn told(pod: &Pod) -> (u64, Counts) {
    let mut last = (0, Counts::new());
    let mut counts = Counts::new();
    for line in serial(pod).lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["IRQ", name, first, second] => {
                if let (Ok(first), Ok(second)) = (first.parse(), second.parse()) {
                    counts.insert(name.to_owned(), [first, second]);
                }
            }
            ["SEEN", number] => last = (number.parse().unwrap_or(0), std::mem::take(&mut counts)),
            _ => {}
        }
    }
    last
}

/// How often the other end of the wire answered.
fn answers(pod: &Pod) -> usize {
    serial(pod).lines().filter(|line| line.starts_with("ANSWER")).count()
}

/// Until all of these devices work, from now on.
pub fn wait_working(pod: &Pod, devices: &[Given]) -> Counts {
    let count = |kind| devices.iter().filter(|one| one.kind == kind).count();
    let (cards, disks) = (count(CARD), count(DISK));
    let (heard, before) = (answers(pod), told(pod).1);
    let said = || {
        let text = serial(pod);
        let last: Vec<&str> = text.lines().rev().take(30).collect();
        format!("; the guest says, last things first:\n{}", last.join("\n"))
    };
    wait_until_or("its devices work", said, || {
        let now = told(pod).1;
        let risen = |name: &str, vcpu: usize| {
            let earlier = before.get(name).map_or(0, |counts| counts[vcpu]);
            now.get(name).is_some_and(|counts| counts[vcpu] > earlier)
        };
        // Each vCPU has its own queue of each disk.
        let reads = (0..disks).all(|disk| risen(&format!("nvme{disk}q1"), 0) && risen(&format!("nvme{disk}q2"), 1));
        let hears = cards == 0 || answers(pod) > heard + 1;
        (reads && hears).then_some(now)
    })
}

pub fn qemu_pid(pod: &Pod) -> u32 {
    let named = |pid: &u32| comm(pid).starts_with("qemu-system");
    container_of(pod.pid).into_keys().find(named).expect("QEMU's process")
}

/// A field of the process's status, in bytes.
pub fn held(pid: u32, field: &str) -> u64 {
    kib(pid, field) << 10
}

/// The bytes of the guest's memory by NUMA node: of the only mapping that is as large.
pub fn guest_memory(pid: u32) -> BTreeMap<u32, u64> {
    let maps = read(format!("/proc/{pid}/numa_maps"));
    let nodes = |line: &str| -> BTreeMap<u32, u64> {
        let words = words(line).into_iter();
        let words = words.filter_map(|word| word.strip_prefix('N')?.split_once('='));
        let pages = words.filter_map(|(node, pages)| Some((node.parse().ok()?, pages.parse::<u64>().ok()? << 12)));
        pages.collect()
    };
    let mut all = maps.lines().map(nodes);
    let found = all.find(|nodes| nodes.values().sum::<u64>() >= MEMORY_MIB << 20);
    found.unwrap_or_else(|| panic!("no mapping of {MEMORY_MIB} MiB:\n{maps}"))
}

/// What `migratepages` does: has the kernel move a process's pages from node 0 to node 1. Answers how many stay.
pub fn migrate_pages(pid: u32) -> u64 {
    const SCRIPT: &str = r#"
import ctypes, sys
migrate_pages, nodes = 256, 64
old, new = ctypes.c_ulong(1), ctypes.c_ulong(2)
left = ctypes.CDLL(None, use_errno=True).syscall(migrate_pages, int(sys.argv[1]), nodes, ctypes.byref(old), ctypes.byref(new))
assert left >= 0, ctypes.get_errno()
print(left)
"#;
    number(&run(&["python3", "-c", SCRIPT, &pid.to_string()]))
}
