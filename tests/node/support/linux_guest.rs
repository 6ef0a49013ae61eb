//! A guest that is a system: the node's own kernel and busybox, from an initramfs that is made here. It prints what it sees of
//! its processors and then works, on its serial line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{Pod, Thread, cpus, put, read, run, utf8, wait_until, words};

pub const KERNEL: &str = "/boot/node-vmlinuz";
pub const MACHINE: &str = if cfg!(target_arch = "aarch64") { "virt" } else { "q35" };
/// Its init writes to `/dev/console`, which is QEMU's first serial line on each architecture.
pub const KERNEL_WORDS: &str = if cfg!(target_arch = "aarch64") {
    "console=ttyAMA0 quiet panic=-1 mitigations=off"
} else {
    "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable"
};
/// For every pod: containers see the node's files.
const INITRAMFS: &str = "/job/guest-initramfs";

const INIT: &str = r#"for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
  for node in $cpu/node[0-9]*; do :; done
  echo "CPU ${cpu##*/cpu} $($b cat $cpu/topology/thread_siblings_list) ${node##*/node}" > /dev/console
done
echo TOPOLOGY-END > /dev/console
# A little work on every CPU, and a sign of life.
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
  while :; do echo x | $b md5sum > /dev/null; $b usleep 20000; done &
done
n=0
while :; do n=$((n + 1)); echo "ALIVE $n" > /dev/console; $b sleep 1; done
"#;

/// A vCPU as the guest's kernel sees it: its hardware siblings, itself among them, and its NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestCpu {
    pub siblings: Vec<u32>,
    pub node: u32,
}

/// QEMU's words for it: 2 cores of 2 threads, each core a socket and a NUMA node of its own.
pub fn system() -> Vec<&'static str> {
    let memory = "-m 256 -object memory-backend-ram,id=m0,size=128M -object memory-backend-ram,id=m1,size=128M";
    let cpus = "-smp 4,sockets=2,cores=1,threads=2 -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1";
    [words(memory), words(cpus), boot(initramfs(), KERNEL_WORDS)].concat()
}

/// QEMU's words for the node's kernel with this initramfs and these words, and the serial line that [`serial`] reads.
pub fn boot<'a>(initramfs: &'a str, kernel_words: &'a str) -> Vec<&'a str> {
    let files = ["-kernel", KERNEL, "-initrd", initramfs];
    [files, ["-append", kernel_words, "-serial", "file:/run/serial"]].concat()
}

/// QEMU's words for a share of virtiofsd's socket `/run/fs`, with the memory that needs.
pub fn with_virtiofsd() -> Vec<&'static str> {
    let memory = "-object memory-backend-memfd,id=shared,size=64M,share=on -machine memory-backend=shared";
    let share = "-chardev socket,id=fs,path=/run/fs -device vhost-user-fs-pci,chardev=fs,tag=share";
    [words(memory), words(share)].concat()
}

pub fn initramfs() -> &'static str {
    make_initramfs(INITRAMFS, INIT, &[]);
    INITRAMFS
}

/// Makes an initramfs with busybox (`$b`), this init, before which `/sys` is mounted, and, in the folder `modules`, these modules of the node's kernel and what they depend on, named in the
/// order in which they are loaded, where it is not there yet. A file under `/job` is visible in every pod.
pub fn make_initramfs(file: &str, init: &str, modules: &[&str]) {
    make_initramfs_with(file, init, modules, &[]);
}

/// The same with these programs of the node's, at the same paths, and the libraries that they need.
pub fn make_initramfs_with(file: &str, init: &str, modules: &[&str], programs: &[&str]) {
    if Path::new(file).exists() {
        return;
    }
    let (modules, programs) = (modules.join(" "), programs.join(" "));
    let script = format!(
        "d=$(mktemp -d); mkdir -p $d/bin $d/dev $d/sys $d/proc $d/modules; cp /bin/busybox $d/bin/; cat > $d/init; chmod +x $d/init
         mknod $d/dev/console c 5 1; mknod $d/dev/null c 1 3
          n=100; for file in $(for m in {modules}; do modprobe --show-depends $m; done | sed -n 's/^insmod //p' | awk '!seen[$1]++ {{ print $1 }}'); do
            name=${{file##*/}}; xz -dc $file > $d/modules/$n-${{name%.xz}}; n=$((n + 1))
          done
          for program in {programs}; do cp -L --parents $program $(ldd $program | grep -o '/[^ ]*') $d; done
          cd $d && find . | cpio -o -H newc --quiet > {file}.new && mv {file}.new {file}; rm -r $d"
    );
    let init_file = format!("{file}.init");
    put(
        &init_file,
        format!("#!/bin/busybox sh\nb=/bin/busybox\n$b mount -t sysfs sys /sys\n{init}"),
    );
    run(&["sh", "-ec", &format!("exec < {init_file}\n{script}")]);
}

pub fn serial(pod: &Pod) -> String {
    utf8(&fs::read(pod.inside("/run/serial")).unwrap_or_default()).replace('\r', "")
}

pub fn last_of_serial(pod: &Pod, bytes: usize) -> String {
    let serial = serial(pod);
    let start = serial.len().saturating_sub(bytes);
    utf8(serial.as_bytes().get(start..).unwrap_or_default())
}

/// What the newest line says that the guest wrote between this beginning and ` END`.
pub fn newest_words(pod: &Pod, beginning: &str) -> Option<String> {
    let between = |line: &str| line.strip_prefix(beginning)?.strip_suffix(" END").map(str::to_owned);
    serial(pod).lines().rev().find_map(between)
}

/// What the guest said of its processors, once it is up.
pub fn topology(pod: &Pod) -> BTreeMap<u32, GuestCpu> {
    let text = wait_until("the guest is up", || {
        let text = serial(pod);
        text.contains("TOPOLOGY-END").then_some(text)
    });
    let cpu = |line: &str| {
        let [number, siblings, node]: [&str; 3] = words(line.strip_prefix("CPU ")?).try_into().ok()?;
        let (siblings, node) = (cpus(siblings).iter().collect(), node.parse().ok()?);
        Some((number.parse().ok()?, GuestCpu { siblings, node }))
    };
    text.lines().filter_map(cpu).collect()
}

pub fn alive(pod: &Pod) -> usize {
    serial(pod).lines().filter(|line| line.starts_with("ALIVE")).count()
}

/// The CPU that each vCPU thread may run on, by the vCPU's number in QEMU's name for the thread.
pub fn seats(pod: &Pod) -> BTreeMap<u32, u32> {
    let seat = |vcpu: &Thread| {
        let number = vcpu.name.strip_prefix("CPU ")?.split('/').next()?.parse().ok()?;
        Some((number, vcpu.allowed.iter().next()?))
    };
    pod.threads().vcpus.iter().filter_map(seat).collect()
}

pub fn host_cpu(cpu: u32) -> GuestCpu {
    let place = format!("/sys/devices/system/cpu/cpu{cpu}");
    let siblings = cpus(&read(format!("{place}/topology/thread_siblings_list")));
    let node = (0..8).find(|node| Path::new(&format!("{place}/node{node}")).exists());
    GuestCpu {
        siblings: siblings.iter().collect(),
        node: node.expect("a NUMA node"),
    }
}
