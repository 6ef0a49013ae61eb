//! The guest: the node's own kernel and busybox. It counts on its serial line, brings plugged CPUs online, and powers off when its power
//! button is pressed.

use std::fs;
use std::path::Path;

use super::Vmm;
use crate::support::{words as command_words, *};

/// What every container of the node sees.
pub const FOLDER: &str = "/job/vmms";
/// The kernel that Firecracker loads, which takes no compressed one. What a VMM itself writes to the guest's memory is on the NUMA node where its
/// thread runs: of a compressed kernel that is little.
const UNPACKED: &str = "/job/vmms/vmlinux";
const INITRAMFS: &str = "/job/vmms/initramfs";
/// An empty disk: Cloud Hypervisor has a thread for each of its queues.
const DISK: &str = "path=/job/vmms/disk,image_type=raw";
/// Where the guest writes, in the container.
pub const SERIAL: &str = "/run/serial";

const INIT: &str = r#"$b mount -t devtmpfs dev /dev
exec > /dev/console 2>&1
for module in /modules/*; do $b insmod $module; done
for device in /dev/input/event*; do { $b head -c 24 $device > /dev/null; echo "guest: power button"; $b poweroff -f; } & done
n=0
while :; do
  n=$((n + 1))
  read -r online < /sys/devices/system/cpu/online
  echo "guest: alive $n on $online"
  for cpu in /sys/devices/system/cpu/cpu[1-9]; do
    [ -e $cpu/online ] && read -r is < $cpu/online && [ "$is" = 0 ] && echo 1 > $cpu/online
  done
  $b usleep 300000
done
"#;

/// The payload of a bzImage (the boot protocol's `payload_offset` and `payload_length`), which is the kernel as ELF, by zstd.
const UNPACK: &str = r#"
import ctypes, sys
image = open(sys.argv[1], "rb").read()
word = lambda at: int.from_bytes(image[at:at + 4], "little")
at = (image[0x1F1] + 1) * 512 + word(0x248)
size = word(0x24C) - 4
payload, length = image[at:at + size], word(at + size)
zstd = ctypes.CDLL("libzstd.so.1")
zstd.ZSTD_decompress.restype = ctypes.c_size_t
zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
kernel = ctypes.create_string_buffer(length)
assert zstd.ZSTD_decompress(kernel, length, payload, size) == length, "the kernel is not compressed by zstd"
open(sys.argv[2], "wb").write(kernel.raw[:length])
"#;

/// The kernel, the initramfs and Firecracker's configuration for this many vCPUs, made where they are not there yet.
pub fn make() {
    if Path::new(INITRAMFS).exists() {
        return;
    }
    fs::create_dir_all(FOLDER).expect(FOLDER);
    run(&["python3", "-c", UNPACK, KERNEL, UNPACKED]);
    put(format!("{FOLDER}/disk"), [0; 1 << 20]);
    make_initramfs(INITRAMFS, INIT, &["button", "evdev", "virtio_blk"]);
}

/// The words of a VMM's command line that boot it with 2 vCPUs, of Cloud Hypervisor with a free slot for a third.
pub fn words(vmm: Vmm) -> Vec<String> {
    match vmm {
        Vmm::CloudHypervisor => {
            let boot = boot(INITRAMFS, KERNEL_WORDS, "--cpus boot=2,max=3 --memory size=128M");
            texts(&[&boot, &["--disk", DISK]])
        }
        Vmm::Firecracker => {
            let file = format!("{FOLDER}/firecracker.json");
            put(&file, configuration());
            vec!["--config-file".into(), file]
        }
        Vmm::Crosvm => {
            // What its sandbox has as the root.
            fs::create_dir_all("/var/empty").expect("/var/empty");
            let serial = format!("type=file,path={SERIAL},hardware=serial,num=1");
            let words =
                format!("--cpus 2 --mem 128 --serial {serial} --block /job/vmms/disk --initrd {INITRAMFS} --params");
            texts(&[&command_words(&words), &[KERNEL_WORDS, KERNEL]])
        }
    }
}

/// Cloud Hypervisor's words for the node's kernel with this initramfs and these words, these words more, and the guest's serial line.
pub fn boot<'a>(initramfs: &'a str, kernel_words: &'a str, more: &'a str) -> Vec<&'a str> {
    let kernel = ["--kernel", KERNEL, "--initramfs", initramfs, "--cmdline", kernel_words];
    let serial = ["--serial", "file=/run/serial", "--console", "off"];
    [&kernel[..], &command_words(more), &serial].concat()
}

fn texts(words: &[&[&str]]) -> Vec<String> {
    words.concat().into_iter().map(str::to_owned).collect()
}

fn configuration() -> String {
    // Firecracker has no PCI and no power button, and ends when its guest resets by the keyboard's controller.
    let all = serde_json::json!({
        "boot-source": {
            "kernel_image_path": UNPACKED,
            "initrd_path": INITRAMFS,
            "boot_args": format!("{KERNEL_WORDS} reboot=k pci=off"),
        },
        "drives": [],
        "machine-config": {"vcpu_count": 2, "mem_size_mib": 128},
        "serial": {"serial_out_path": SERIAL},
    });
    all.to_string()
}

/// What the guest wrote. A Firecracker that was restored writes to its standard output.
pub fn said(pod: &Pod) -> String {
    let serial = utf8(&fs::read(pod.inside(SERIAL)).unwrap_or_default());
    format!("{serial}{}", pod.logs()).replace('\r', "")
}

/// The newest sign of life: its number, and the guest's CPUs that are online.
pub fn alive(pod: &Pod) -> Option<(u32, String)> {
    let said = said(pod);
    let mut signs = said.lines().filter_map(|line| {
        let (number, cpus) = line.split_once("guest: alive ")?.1.split_once(" on ")?;
        Some((number.parse().ok()?, cpus.trim().to_owned()))
    });
    signs.next_back()
}
