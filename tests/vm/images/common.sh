# Shared by every image's recipe. Sourced by ../node before the recipe; a change here rebuilds all images.
disk_size=4G # sparse
tcg_cpu=EPYC # under emulation, with SVM: the node has a /dev/kvm of its own; -cpu max panics
packages=(
  systemd systemd-sysv dbus udev initramfs-tools busybox-static kmod xz-utils cpio
  procps util-linux iproute2 attr passwd socat python3 irqbalance
)
