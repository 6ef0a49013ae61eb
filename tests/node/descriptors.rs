//! Descriptors that the runner opens for a VMM: a tap, vhost-net and vhost-vsock, for a container that may create no network interface; and the
//! threads that KVM and vhost make, as the table in docs/runner.md has them.

use std::collections::BTreeMap;
use std::fs;

use crate::support::*;

const TAP: &str = "stelia-tap0";
/// The host's address on the tap, and the guest's (RFC 5737).
const HOST: &str = "192.0.2.1/24";
const GUEST: &str = "192.0.2.2";
/// The guest's address for vsock.
const CID: &str = "42";
pub const INITRAMFS: &str = "/job/guest-network";
const MODULES: [&str; 2] = ["virtio_net", "vmw_vsock_virtio_transport"];

/// It has an address on its network card, and answers on no port.
const INIT: &str = r#"for module in /modules/*; do $b insmod $module; done
for interface in /sys/class/net/e*; do
  $b ip address add 192.0.2.2/24 dev ${interface##*/}
  $b ip link set ${interface##*/} up
done
n=0
while :; do n=$((n + 1)); echo "ALIVE $n" > /dev/console; $b sleep 1; done
"#;

/// Connects to a port on which nobody listens: who is there refuses. Prints the error's name.
const CONNECT: &str = r#"
import errno, socket, sys
family, address = sys.argv[1], sys.argv[2]
s = socket.socket(getattr(socket, family), socket.SOCK_STREAM)
s.settimeout(20)
try:
    s.connect((int(address) if family == "AF_VSOCK" else address, 9))
    print("connected")
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
"#;

fn connect(family: &str, address: &str) -> String {
    run(&["python3", "-c", CONNECT, family, address]).trim().to_owned()
}

pub fn assert_network_answers() {
    let seen = || format!(": {}", connect("AF_INET", GUEST));
    wait_until_or("the guest answers over the tap", seen, || {
        connect("AF_INET", GUEST) == "ECONNREFUSED"
    });
}

/// A tap that belongs to the container's user, who needs no capability to attach to it.
pub fn make_tap() {
    run("modprobe tun");
    run(&format!("ip tuntap add {TAP} mode tap user 0 vnet_hdr"));
    run(&format!("ip address add {HOST} dev {TAP}"));
    run(&format!("ip link set {TAP} up"));
}

pub fn remove_tap() {
    drop(output(&["ip", "link", "del", TAP]));
}

pub fn make_guest() {
    make_initramfs(INITRAMFS, INIT, &MODULES);
}

/// For each process of the container by its name, the devices among its descriptors.
pub fn open_devices(pod: &Pod) -> BTreeMap<String, Vec<String>> {
    let devices = [
        "/dev/net/tun",
        "/dev/vhost-net",
        "/dev/vhost-vsock",
        "/dev/vfio/",
        "/dev/iommu",
        "iommufd",
    ];
    let of_process = |(pid, threads): (u32, Vec<Thread>)| {
        let name = threads.iter().find(|thread| thread.tid == pid)?.name.clone();
        let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let links = links.filter_map(|link| fs::read_link(link.path()).ok());
        let mut open: Vec<String> = links.map(|link| link.display().to_string()).collect();
        open.retain(|link| devices.iter().any(|device| link.contains(device)));
        open.sort();
        Some((format!("{name}/{pid}"), open))
    };
    let processes = container_and_nested(pod.pid).into_iter();
    processes.filter_map(of_process).collect()
}

#[test]
fn a_guest_has_a_tap_and_vhost_by_descriptors_of_the_runner() {
    needs_kvm();
    on_node_undoing(remove_tap, || {
        for module in ["vhost_net", "vhost_vsock"] {
            run(&["modprobe", module]);
        }
        let counted = counters();
        make_tap();
        make_guest();
        let devices = ["/dev/vhost-net", "/dev/vhost-vsock", "/dev/net/tun"];
        let devices = devices.iter().flat_map(|device| ["--device", device]);
        let options: Vec<&str> = ["--cpus", "2"].into_iter().chain(devices).collect();
        let descriptors =
            "--qmp /run/qmp --fd net=tap:stelia-tap0 --fd vhost=/dev/vhost-net --fd vsock=/dev/vhost-vsock";
        let runner = [
            &words(descriptors)[..],
            &["--helper", "name=other,command=sleep 100000"],
        ]
        .concat();
        let card =
            "-netdev tap,id=net,fd={fd:net},vhost=on,vhostfd={fd:vhost} -device virtio-net-pci,netdev=net,romfile=";
        let devices = format!("-smp 2 -m 128 {card} -device vhost-vsock-pci,guest-cid={CID},vhostfd={{fd:vsock}}");
        let qemu = [&words(&devices)[..], &boot(INITRAMFS, KERNEL_WORDS)].concat();
        let pod = Pod::start_qemu(Accel::Kvm, "descriptors", &options, &runner, &qemu).running();
        let seen = || format!(": {}", serial(&pod));
        wait_until_or("the guest lives", seen, || serial(&pod).contains("ALIVE"));
        assert_network_answers();
        // Without a guest that has the driver it is ENODEV or a time-out.
        let answer = connect("AF_VSOCK", CID);
        assert_eq!(answer, "ECONNRESET");

        let threads = assert_isolated(&pod, 2);
        // vhost-net's and vhost-vsock's.
        assert_eq!(threads.named("vhost-").len(), 2, "{threads:#?}");
        // What KVM makes on x86: a thread of the container's, which was moved, and one of the kernel's, bound to nobody.
        if cfg!(target_arch = "x86_64") {
            assert_eq!(threads.named("kvm-nx-lpage").len(), 1);
            let timer = processes_named("kvm-pit/").into_iter().next().expect("kvm-pit");
            assert!(!timer.cgroup.starts_with(pod.scope()), "{timer:?}");
        }
        assert_eq!(counters(), counted, "nobody is blamed for it");
        let open = open_devices(&pod);
        let of = |name: &str| {
            let mut found = open.iter().filter(|(process, _)| process.starts_with(name));
            found.next().map(|(_, open)| open.clone()).unwrap_or_default()
        };
        let all = ["/dev/net/tun", "/dev/vhost-net", "/dev/vhost-vsock"];
        assert_eq!(of("qemu"), all, "{open:?}");
        assert!(of("sleep").is_empty(), "a helper has the VMM's descriptors: {open:?}");
        // They are closed with the VM, so the tap can be attached to again.
        pod.delete(0);
        wait_until("the tap is free", || {
            read_if_there(format!("/sys/class/net/{TAP}/carrier")) == "0"
        });
    });
}
