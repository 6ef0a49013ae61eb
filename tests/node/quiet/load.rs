//! Devices that fire while a test looks: the node's network card, whose interrupts anybody may place, and its disks.

use std::fs::OpenOptions;
use std::net::UdpSocket;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use stelia_cpus::CpuSet;

use super::interrupts::Interrupt;
use crate::support::*;

const DRIVER: &str = "/sys/bus/virtio/drivers/virtio_net";
/// A disk that nobody else uses: the job's tar.
const DISK: &str = "/dev/vdb";
const BLOCK: usize = 4096;
/// Each read is one of the device's.
const DIRECT: i32 = nix::libc::O_DIRECT;

/// The network card. Its driver is loaded by the first who asks, and stays.
pub struct Card {
    pub input: Interrupt,
    pub output: Interrupt,
    /// Of the network interface.
    pub name: String,
}

impl Card {
    pub fn up() -> Self {
        run("modprobe virtio_net");
        // udev gives it another name.
        run("udevadm settle");
        wait_until("the card is up", || {
            let name = names_in(format!("{DRIVER}/{}/net", device()?)).pop()?;
            let is_done = |command: &str| output(command).status.success();
            let has_address = is_done(&format!("ip address replace 10.0.2.15/24 dev {name}"));
            (has_address && is_done(&format!("ip link set {name} up"))).then_some(())
        });
        let device = device().expect("a virtio card");
        Self {
            input: Interrupt::named(&format!("{device}-input.0")),
            output: Interrupt::named(&format!("{device}-output.0")),
            name: names_in(format!("{DRIVER}/{device}/net")).pop().expect("its interface"),
        }
    }

    /// The load is sent and never answered. Forget the neighbour it goes to: the kernel asks for it again, and the answer comes in.
    pub fn hear(&self) {
        // Not there while it is being asked for.
        output(&["ip", "neigh", "del", "10.0.2.2", "dev", &self.name]);
    }
}

fn device() -> Option<String> {
    names_in(DRIVER).into_iter().find(|name| name.starts_with("virtio"))
}

/// A packet and a block, some hundred times a second, from wherever the host may run.
pub struct Load {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let until = |step: Box<dyn Fn() + Send>| {
            let over = Arc::clone(&over);
            spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    step();
                    sleep(Duration::from_millis(2));
                }
            })
        };
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        // Nobody answers: the card tells that it has sent it. It cannot while a CPU goes or comes.
        let send = move || drop(socket.send_to(b"noise", "10.0.2.2:9"));
        let threads = vec![until(Box::new(send)), until(Box::new(|| read_blocks(DISK, 1)))];
        Self { over, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

pub fn read_blocks(device: &str, blocks: u64) {
    let disk = OpenOptions::new().read(true).custom_flags(DIRECT).open(device);
    let disk = disk.expect(device);
    let mut space = vec![0; 2 * BLOCK];
    let start = space.as_ptr().align_offset(BLOCK);
    for block in 0..blocks {
        let place = space.get_mut(start..start + BLOCK).expect("twice the space");
        disk.read_exact_at(place, block * BLOCK as u64).expect(device);
    }
}

pub fn read_blocks_on(cpu: u32, device: &str, blocks: u64) {
    run(&format!(
        "taskset -c {cpu} dd if={device} of=/dev/null bs=4096 count={blocks} iflag=direct status=none"
    ));
}

/// The core of a CPU.
pub fn core(cpus: &CpuSet) -> CpuSet {
    let cpu = first_of(cpus);
    crate::support::cpus(&read(format!(
        "/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    )))
}
