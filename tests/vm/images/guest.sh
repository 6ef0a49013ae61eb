#!/bin/bash
# Runs once inside the new root file system (chroot) and makes it a node that boots fast and takes jobs. Under emulation
# every process started at boot costs tenths of a second, so whatever no test looks at is masked.
set -euo pipefail

echo node > /etc/hostname
printf '127.0.0.1 localhost node\n::1 localhost\n' > /etc/hosts # containerd refuses to start without it
: > /etc/fstab
passwd -q -d root

# apt must install a .deb without any network: the package status stays, the sources go.
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/* /var/cache/apt/*.bin

# udev's coldplug is the longest wait of the whole boot and nothing here needs it: devtmpfs makes the nodes.
# containerd and irqbalance are started by those who use them.
systemctl -q mask \
  systemd-udev-trigger.service systemd-udev-settle.service systemd-logind.service systemd-networkd.service \
  systemd-networkd-wait-online.service systemd-resolved.service systemd-timesyncd.service systemd-hwdb-update.service \
  systemd-pcrphase.service systemd-pcrphase-sysinit.service systemd-random-seed.service systemd-update-done.service \
  systemd-journal-flush.service systemd-journal-catalog-update.service systemd-firstboot.service \
  systemd-machine-id-commit.service systemd-binfmt.service ldconfig.service keyboard-setup.service \
  getty.target getty@.service serial-getty@.service console-getty.service getty-static.service \
  e2scrub_reap.service e2scrub_all.timer fstrim.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
  man-db.timer systemd-tmpfiles-clean.timer systemd-update-utmp.service systemd-update-utmp-runlevel.service \
  dev-hugepages.mount systemd-user-sessions.service proc-sys-fs-binfmt_misc.automount remote-fs.target \
  modprobe@configfs.service modprobe@fuse.service modprobe@efi_pstore.service modprobe@drm.service \
  sys-fs-fuse-connections.mount sys-kernel-config.mount
systemctl -q disable containerd.service dnsmasq.service irqbalance.service 2>/dev/null || true
# libvirt runs in pods only, and what its packages bring along (systemd-container, logrotate) not at all: no unit of theirs may
# start by itself, at boot or by a call on the bus.
systemctl -q mask \
  libvirtd.service libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd-tcp.socket libvirtd-tls.socket \
  libvirt-guests.service virtlogd.service virtlogd.socket virtlogd-admin.socket \
  systemd-machined.service systemd-machined.socket systemd-importd.service systemd-importd.socket systemd-portabled.service \
  systemd-mountfsd.socket systemd-nsresourced.socket machines.target var-lib-machines.mount logrotate.timer
systemctl -q set-default multi-user.target
mkdir -p /etc/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=200M\nRateLimitBurst=0\n' > /etc/systemd/journald.conf.d/node.conf

# The job: the second disk is a tar. All it does is in that tar, so a change of the door or of a job rebuilds nothing.
cat > /etc/systemd/system/node-job.service <<'UNIT'
[Unit]
Description=The test node's job
After=basic.target dbus.service
[Service]
ExecStart=/bin/bash -c 'tar -C / -xf /dev/vdb && exec bash /node/agent'
ExecStopPost=/bin/systemctl poweroff -f -f
KillMode=mixed
TimeoutStopSec=5
OOMScoreAdjust=-900
[Install]
WantedBy=multi-user.target
UNIT
systemctl -q enable node-job.service

# Our own initramfs: load the few modules, mount, go. The distribution's takes ten times as long under emulation.
kernel=$(cd /lib/modules && printf '%s\n' * | sort -V | tail -n 1)
t=$(mktemp -d)
mkdir -p "$t"/{bin,dev,proc,root,modules}
cp /bin/busybox "$t/bin/busybox"
n=100
for m in virtio_pci virtio_blk virtio_console ext4; do
  while read -r verb file _; do
    [ "$verb" = insmod ] || continue
    name=$(basename "${file%%.ko*}").ko
    compgen -G "$t/modules/*-$name" > /dev/null && continue
    case $file in
      *.xz) xz -dc "$file" > "$t/modules/$n-$name" ;;
      *) cp "$file" "$t/modules/$n-$name" ;;
    esac
    n=$((n + 1))
  done < <(modprobe -S "$kernel" --show-depends "$m")
done
cat > "$t/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
if $b grep -q node.probe /proc/cmdline; then
  echo node-probe-ok > /dev/console
  $b poweroff -f
fi
for m in /modules/*; do $b insmod "$m"; done
i=0
while ! [ -b /dev/vda ] && [ $i -lt 600 ]; do $b usleep 50000; i=$((i + 1)); done
$b mount -t ext4 -o rw,noatime /dev/vda /root
$b mount -o move /dev /root/dev
$b umount /proc
exec $b switch_root /root /sbin/init
INIT
chmod +x "$t/init"
(cd "$t" && find . | cpio -o -H newc --quiet) > /boot/node-initrd
cp "/boot/vmlinuz-$kernel" /boot/node-vmlinuz
rm -rf "$t" /boot/initrd.img*
mkdir -p /host # where the door hands files to the QEMU it runs from this root
