//! The disks that the examples' guests boot here, in the form of the image that the manifests name: qcow2, from the BIOS, on arm64 from UEFI.

use std::fs;
use std::path::Path;

use crate::support::*;

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

const INITRAMFS: &str = "/run/first-vm-initramfs";
const MODULES: [&str; 3] = ["virtio_net", "button", "evdev"];

/// A Linux that says how many CPUs it has, answers on its network, and says what is in its share.
const INIT: &str = r#"$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
exec > /dev/console 2>&1
for module in /modules/*; do $b insmod $module; done
if $b ip addr add 10.0.2.15/24 dev eth0 2> /dev/null; then
  $b ip link set eth0 up
  while :; do echo "hello from the guest" | $b nc -l -p 22; done &
fi
$b mkdir /data
if $b mount -t virtiofs data /data 2> /dev/null; then
  echo "guest: the share says $($b cat /data/said)"
  echo "from the guest" > /data/answered
fi
echo "guest: up with $($b nproc) CPUs"
for device in /dev/input/event*; do { $b head -c 24 $device > /dev/null; $b touch /pressed; } & done
until [ -e /pressed ]; do $b usleep 100000; done
echo "guest: power button"
$b poweroff -f
"#;

/// Makes `esp`, a file system of `$0` sectors that UEFI firmware boots, with a boot loader, the kernel, its command line `$1` and the initramfs.
const ESP: &str = r#"
printf 'linux /vmlinuz\ninitrd /initrd\noptions %s\n' "$1" > linux.conf
mformat -C -i esp -T $0 ::
mmd -i esp ::/EFI ::/EFI/BOOT ::/loader ::/loader/entries
mcopy -i esp /usr/lib/systemd/boot/efi/systemd-bootaa64.efi ::/EFI/BOOT/BOOTAA64.EFI
mcopy -i esp linux.conf ::/loader/entries/
mcopy -i esp vmlinuz initrd ::/
"#;

/// The guest of one sector.
pub fn button() -> Vec<u8> {
    job_file(BUTTON)
}

/// The node's own kernel with busybox.
pub fn linux() -> Vec<u8> {
    let kernel = fs::read(KERNEL).expect("the kernel");
    make_initramfs(INITRAMFS, INIT, &MODULES);
    let initramfs = fs::read(INITRAMFS).expect(INITRAMFS);
    if cfg!(target_arch = "aarch64") {
        for_uefi(&kernel, &initramfs)
    } else {
        for_bios(&kernel, &initramfs)
    }
}

/// One partition, of the kind that UEFI firmware looks for (0xef), behind the first MiB.
fn for_uefi(kernel: &[u8], initramfs: &[u8]) -> Vec<u8> {
    const FOLDER: &str = "/run/first-vm-esp";
    const BEFORE: usize = 1 << 20;
    drop(fs::remove_dir_all(FOLDER));
    fs::create_dir_all(FOLDER).expect(FOLDER);
    for (name, bytes) in [("vmlinuz", kernel), ("initrd", initramfs)] {
        put(Path::new(FOLDER).join(name), bytes);
    }
    // The boot loader and the file system's tables need less than 4 MiB.
    let sectors = (kernel.len() + initramfs.len() + (4 << 20)) / SECTOR;
    let script = format!("cd {FOLDER}{ESP}");
    run(&["sh", "-ec", &script, &sectors.to_string(), KERNEL_WORDS]);
    let mut disk = vec![0; BEFORE];
    let mut entry = vec![0, 0, 0, 0, 0xef, 0, 0, 0];
    for number in [BEFORE / SECTOR, sectors] {
        entry.extend(u32::try_from(number).expect("small").to_le_bytes());
    }
    disk[0x1be..][..entry.len()].copy_from_slice(&entry);
    disk[0x1fe..][..2].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(fs::read(Path::new(FOLDER).join("esp")).expect("the file system"));
    disk
}

fn for_bios(kernel: &[u8], initramfs: &[u8]) -> Vec<u8> {
    let real_mode = (usize::from(kernel[0x1f1]) + 1) * SECTOR;
    let mut low = kernel[..real_mode].to_vec();
    low.resize(LOW, 0);
    let command_line = format!("{KERNEL_WORDS}\0");
    low[COMMAND_LINE..][..command_line.len()].copy_from_slice(command_line.as_bytes());
    // The fields that a loader fills in: its kind, that there is a heap and where it ends, the initramfs and the command line.
    let mut field = |at: usize, bytes: &[u8]| low[at..][..bytes.len()].copy_from_slice(bytes);
    field(0x210, &[0xff]);
    field(0x211, &[kernel[0x211] | 0x80]);
    field(0x218, &0x0800_0000_u32.to_le_bytes());
    field(0x21c, &u32::try_from(initramfs.len()).expect("small").to_le_bytes());
    field(0x224, &0xde00_u16.to_le_bytes());
    field(0x228, &0x9_e000_u32.to_le_bytes());
    let mut disk = job_file(BOOT);
    let parts = [in_pieces(&kernel[real_mode..]), in_pieces(initramfs)];
    for (at, part) in [0x1fa, 0x1fc].into_iter().zip(&parts) {
        let pieces = u16::try_from(part.len() / PIECE).expect("small");
        disk[at..at + 2].copy_from_slice(&pieces.to_le_bytes());
    }
    disk.extend(low);
    disk.extend(parts.concat());
    disk
}

fn job_file(name: &str) -> Vec<u8> {
    fs::read(beside(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn in_pieces(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(PIECE), 0);
    padded
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
    let (table, level1) = (cluster(&[at(2)]), cluster(&[at(4) | COPIED]));
    put(
        path,
        [header, table, references, level1, cluster(&level2), data].concat(),
    );
}
