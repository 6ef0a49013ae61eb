//! The disks that the examples' guests boot here, in the form of the image that the manifests name: qcow2, from the BIOS.

use std::fs;
use std::path::Path;

use crate::support::host::run;

/// Says that it runs, and ends when its power button is pressed: `button.S`.
const BUTTON: &str = "first-vm-button.bin";
/// Loads the kernel and the initramfs behind it: `boot.S`.
const BOOT: &str = "first-vm-boot.bin";

const SECTOR: usize = 512;
/// What the boot sector reads at once.
const PIECE: usize = 126 * SECTOR;
/// What it reads below 1 MiB: the kernel's real-mode part, up to the command line's end.
const LOW: usize = 114 * SECTOR;
const COMMAND_LINE: usize = 0xe000;

/// What a Linux in the examples says and does: how many CPUs it has, that it answers on its network and what is in the share, as far
/// as it has one.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
for kind in proc sysfs devtmpfs; do $b mount -t $kind $kind /$kind; done
exec > /devtmpfs/ttyS0 2>&1
for module in failover net_failover virtio_net button evdev; do $b insmod /$module.ko; done
if $b ip addr add 10.0.2.15/24 dev eth0 2> /dev/null; then
  $b ip link set eth0 up
  while :; do echo "hello from the guest" | $b nc -l -p 22; done &
fi
if $b mount -t virtiofs data /data 2> /dev/null; then
  echo "guest: the share says $($b cat /data/said)"
  echo "from the guest" > /data/answered
fi
echo "guest: up with $($b nproc) CPUs"
for device in /devtmpfs/input/event*; do { $b head -c 24 $device > /dev/null; $b touch /pressed; } & done
until [ -e /pressed ]; do $b usleep 100000; done
echo "guest: power button"
$b poweroff -f
"#;

/// The guest of one sector.
pub fn button() -> Vec<u8> {
    job_file(BUTTON)
}

/// The node's own kernel with busybox.
pub fn linux() -> Vec<u8> {
    let kernel = fs::read("/boot/node-vmlinuz").expect("the kernel");
    let initramfs = initramfs();
    let real_mode = (usize::from(kernel[0x1f1]) + 1) * SECTOR;
    let mut low = kernel[..real_mode].to_vec();
    low.resize(LOW, 0);
    let command_line = b"console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable\0";
    low[COMMAND_LINE..][..command_line.len()].copy_from_slice(command_line);
    // The fields that a loader fills in: its kind, that there is a heap and where it ends, the initramfs and the command line.
    let mut field = |at: usize, bytes: &[u8]| low[at..][..bytes.len()].copy_from_slice(bytes);
    field(0x210, &[0xff]);
    field(0x211, &[kernel[0x211] | 0x80]);
    field(0x218, &0x0800_0000_u32.to_le_bytes());
    field(0x21c, &u32::try_from(initramfs.len()).expect("small").to_le_bytes());
    field(0x224, &0xde00_u16.to_le_bytes());
    field(0x228, &0x9_e000_u32.to_le_bytes());
    let mut disk = job_file(BOOT);
    let parts = [in_pieces(&kernel[real_mode..]), in_pieces(&initramfs)];
    for (at, part) in [0x1fa, 0x1fc].into_iter().zip(&parts) {
        let pieces = u16::try_from(part.len() / PIECE).expect("small");
        disk[at..at + 2].copy_from_slice(&pieces.to_le_bytes());
    }
    disk.extend(low);
    disk.extend(parts.concat());
    disk
}

fn job_file(name: &str) -> Vec<u8> {
    let me = std::env::current_exe().expect("own path");
    fs::read(me.with_file_name(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn in_pieces(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(PIECE), 0);
    padded
}

fn initramfs() -> Vec<u8> {
    const MADE: &str = "/run/first-vm-initramfs";
    fs::write("/run/first-vm-init", INIT).expect("its init");
    let script = format!(
        "d=$(mktemp -d); cd $d; mkdir bin dev proc sysfs devtmpfs data; cp /bin/busybox bin/; cp /run/first-vm-init init; chmod +x init
         mknod dev/console c 5 1; mknod dev/null c 1 3
         for module in failover net_failover virtio_net button evdev; do
           xz -dc $(find /lib/modules -name $module.ko.xz) > $module.ko
         done
         find . | cpio -o -H newc --quiet > {MADE}"
    );
    run(&["sh", "-ec", &script]);
    fs::read(MADE).expect(MADE)
}

/// The smallest qcow2 that holds these bytes: a header, the counts of references, one table of each level, the clusters in order.
pub fn write_qcow2(path: &Path, disk: &[u8]) {
    const CLUSTER: usize = 1 << 16;
    const COPIED: u64 = 1 << 63;
    let at = |cluster: usize| u64::try_from(cluster * CLUSTER).expect("an offset");
    let cluster = |words: &[u64]| {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert!(bytes.len() <= CLUSTER);
        bytes.resize(CLUSTER, 0);
        bytes
    };
    // A BIOS wants a disk to have a cylinder at least.
    let mut data = disk.to_vec();
    data.resize(disk.len().next_multiple_of(1 << 20), 0);
    let (count, size) = (data.len() / CLUSTER, at(data.len() / CLUSTER));
    // Magic and version 2; no backing file; 2^16 bytes a cluster, the size, no encryption; one entry of level 1, in cluster 3;
    // the table of reference counts, of one cluster, in cluster 1; no snapshots.
    let mut header = b"QFI\xfb\0\0\0\x02".to_vec();
    header.extend([0; 12]);
    header.extend(16_u32.to_be_bytes());
    header.extend(size.to_be_bytes());
    header.extend([0, 0, 0, 0, 0, 0, 0, 1]);
    header.extend([at(3), at(1)].iter().flat_map(|word| word.to_be_bytes()));
    header.extend(1_u32.to_be_bytes());
    header.resize(CLUSTER, 0);
    // One reference to each cluster, in 16 bits.
    let mut references: Vec<u8> = [0, 1].repeat(5 + count);
    references.resize(CLUSTER, 0);
    let level2: Vec<u64> = (0..count).map(|number| at(5 + number) | COPIED).collect();
    let image = [
        header,
        cluster(&[at(2)]),
        references,
        cluster(&[at(4) | COPIED]),
        cluster(&level2),
        data,
    ];
    fs::write(path, image.concat()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
