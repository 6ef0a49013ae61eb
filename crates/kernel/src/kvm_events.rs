//! When VMs begin and end on this node, whoever makes them: KVM's uevents (kernel: `kvm_uevent_notify_change` in
//! `virt/kvm/kvm_main.c`).
//!
//! KVM has its device, `/dev/kvm`, say `EVENT=create` when a VM was made, and `EVENT=destroy` when the last descriptor of a VM was
//! closed. What the kernel does and what was seen of it (kernel 6.12, `tests/node/adopted.rs`):
//!
//! - `PID` is the number of the **thread** that called `KVM_CREATE_VM` (`task_pid_nr`). In QEMU, Firecracker and crosvm that is
//!   the main thread; in Cloud Hypervisor it is the thread `vmm`, so the number is not that of a process. Both events of
//!   a VM have it, even when the thread has ended and the number is another's: the event of the end means the VM of which the
//!   beginning was heard.
//! - The number is the initial PID namespace's, also for a VM in a container, and whoever reads it.
//! - One start of QEMU may be several VMs: on arm64 it makes further ones to read what vCPUs can have, while its own is there.
//! - At the beginning there are no vCPUs yet, and none of their threads. At the end of a VMM that was killed `/proc` may still have
//!   its last thread, which closes the descriptors.
//! - Uevents go to every network namespace that belongs to the initial user namespace (`uevent_net_init` in `lib/kobject_uevent.c`),
//!   so to a unit with `PrivateNetwork=yes` too, and not to one that has a user namespace of its own. No capability is needed to
//!   listen; the unit must allow the address family (`RestrictAddressFamilies=AF_NETLINK`).
//! - They are dropped where a socket's buffer is full: after some 240, with the kernel's default (212992 bytes). That is reported
//!   once, as ENOBUFS, and from then on everything is dropped until the reader has emptied the queue (`netlink_overrun` in
//!   `net/netlink/af_netlink.c`).
//!
//! Programs with CAP_NET_ADMIN in the same network namespace may send to the same group. Their messages have a port as sender, the
//! kernel's have 0. With CAP_SYS_ADMIN over that namespace the kernel can be asked to send a message as its own
//! (`uevent_net_rcv_skb`): of the daemon's that is root of the node.

use std::os::fd::OwnedFd;
use std::{io, str};

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};
use tokio::io::unix::AsyncFd;

use crate::async_fd;

/// The group to which the kernel sends; udev sends what it made of them to group 2.
const KERNELS_GROUP: u32 = 1;

/// Limit of a uevent, in bytes. The kernel's buffer for the variables has 2 KiB (`UEVENT_BUFFER_SIZE`), and a header with a path comes before them.
const MAX_UEVENT_BYTES: usize = 8192;

/// What became of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Created,
    /// Its last descriptor was closed.
    Destroyed,
}

/// One event of KVM's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmEvent {
    pub change: Change,
    /// The thread that made the VM, in the initial PID namespace. It may have ended.
    pub thread: i32,
    /// How many VMs were made since KVM was loaded.
    pub created: u64,
    /// How many there are.
    pub count: u64,
}

/// A message of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvmMessage {
    Vm(VmEvent),
    /// Events were dropped, or one cannot be read: all processes have to be read to find the VMs.
    Lost,
}

/// The socket cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[error("{operation} a socket for KVM's uevents: {cause}")]
pub struct KvmEventsError {
    operation: &'static str,
    #[source]
    pub cause: io::Error,
}

impl KvmEventsError {
    fn of<C: Into<io::Error>>(operation: &'static str) -> impl Fn(C) -> Self {
        move |cause| Self {
            operation,
            cause: cause.into(),
        }
    }
}

/// Hears every VM of the node that begins or ends from now on.
#[derive(Debug)]
pub struct KvmEvents {
    socket: AsyncFd<OwnedFd>,
    queue: Queue,
}

impl KvmEvents {
    /// Belongs to the runtime it is called in. KVM need not be loaded yet.
    ///
    /// # Errors
    /// Sockets of this kind are forbidden (a system-call filter, `RestrictAddressFamilies=`), or there are no more descriptors.
    pub fn listen() -> Result<Self, KvmEventsError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT));
        let socket = socket.map_err(KvmEventsError::of("create"))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNELS_GROUP)).map_err(KvmEventsError::of("bind"))?;
        Ok(Self {
            socket: async_fd::register(socket).map_err(KvmEventsError::of("wait for"))?,
            queue: Queue::default(),
        })
    }

    /// The next event. May be dropped while it waits: nothing is lost by that.
    ///
    /// # Errors
    /// The socket cannot be read, which a further call does not change.
    pub async fn next(&mut self) -> Result<KvmMessage, KvmEventsError> {
        let mut message = vec![0; MAX_UEVENT_BYTES];
        loop {
            let ready = self.socket.readable().await;
            let mut ready = ready.map_err(KvmEventsError::of("wait for"))?;
            let received = receive(self.socket.get_ref(), &mut message);
            if matches!(received, Err(Errno::AGAIN)) {
                ready.clear_ready();
            }
            drop(ready);
            if let Some(heard) = self
                .queue
                .take(received, &message)
                .map_err(KvmEventsError::of("read"))?
            {
                return Ok(heard);
            }
        }
    }
}

/// The length of a message, which may be more than there is room for, and its sender, if it has an address.
type Received = Result<(usize, Option<u32>), Errno>;

fn receive(socket: &OwnedFd, message: &mut [u8]) -> Received {
    let (_, length, sender) = recvfrom(socket, message, RecvFlags::TRUNC)?;
    let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
    Ok((length, sender.map(|sender| sender.pid())))
}

/// What was read of the socket's queue.
#[derive(Debug, Default)]
struct Queue {
    /// Events were dropped, and the queue was not seen to be empty since.
    overrun: bool,
}

impl Queue {
    /// What a read says. None: read on.
    ///
    /// After an overrun the kernel drops events until the queue is empty, and does not report that again. Whoever looked at all processes as
    /// soon as the overrun is known would miss a VM that begins between that look and the end of the queue. So the queue is emptied
    /// first, and then the loss is reported, which stands for everything that was in it too.
    fn take(&mut self, received: Received, message: &[u8]) -> Result<Option<KvmMessage>, Errno> {
        match received {
            Ok(_) if self.overrun => Ok(None),
            // From whom it is, is asked before what it says.
            Ok((_, sender)) if sender != Some(0) => Ok(None),
            Ok((length, _)) => Ok(message.get(..length).map_or(Some(KvmMessage::Lost), parse)),
            Err(Errno::NOBUFS) => {
                self.overrun = true;
                Ok(None)
            }
            Err(Errno::AGAIN) => Ok(std::mem::take(&mut self.overrun).then_some(KvmMessage::Lost)),
            Err(Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// What a message of the kernel's says of a VM; nothing if it is about something else.
fn parse(message: &[u8]) -> Option<KvmMessage> {
    let value = |name: &str| {
        let variables = message.split(|byte| *byte == 0);
        let mut named = variables.filter_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        named.next()
    };
    let is_kvms =
        value("ACTION") == Some(b"change") && value("SUBSYSTEM") == Some(b"misc") && value("DEVNAME") == Some(b"kvm");
    // Without it somebody only had the kernel report the device once more (`udevadm trigger`).
    let event = value("EVENT").filter(|_| is_kvms)?;
    let number = |name| str::from_utf8(value(name)?).ok()?.parse::<u64>().ok();
    let read = || {
        let change = match event {
            b"create" => Change::Created,
            b"destroy" => Change::Destroyed,
            _ => return None,
        };
        let thread = number("PID").and_then(|thread| i32::try_from(thread).ok());
        Some(VmEvent {
            change,
            thread: thread.filter(|thread| *thread > 0)?,
            created: number("CREATED")?,
            count: number("COUNT")?,
        })
    };
    Some(read().map_or(KvmMessage::Lost, KvmMessage::Vm))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kernel 6.12 sends it.
    const CREATED: &str = "change@/devices/virtual/misc/kvm ACTION=change DEVPATH=/devices/virtual/misc/kvm SUBSYSTEM=misc CREATED=7 COUNT=2 \
        EVENT=create PID=1234 STATS_PATH=/kvm/1234-9 MAJOR=10 MINOR=232 DEVNAME=kvm SEQNUM=1790 ";

    fn message(text: &str) -> Vec<u8> {
        text.replace(' ', "\0").into_bytes()
    }

    fn said(text: &str) -> Option<KvmMessage> {
        parse(&message(text))
    }

    fn from(sender: u32, text: &str) -> (Received, Vec<u8>) {
        let message = message(text);
        (Ok((message.len(), Some(sender))), message)
    }

    #[test]
    fn the_beginning_and_the_end_of_a_vm_name_the_thread_that_made_it() {
        let created = VmEvent {
            change: Change::Created,
            thread: 1234,
            created: 7,
            count: 2,
        };
        assert_eq!(said(CREATED), Some(KvmMessage::Vm(created)));
        let ended = CREATED.replace("create", "destroy").replace("COUNT=2", "COUNT=1");
        let destroyed = VmEvent {
            change: Change::Destroyed,
            count: 1,
            ..created
        };
        assert_eq!(said(&ended), Some(KvmMessage::Vm(destroyed)));
    }

    #[test]
    fn other_devices_and_a_device_reported_once_more_are_nothing() {
        let others = [
            ("ACTION=change", "ACTION=add"),
            ("SUBSYSTEM=misc", "SUBSYSTEM=block"),
            ("DEVNAME=kvm", "DEVNAME=kvmfr0"),
            ("EVENT=create", "SYNTH_UUID=0"),
            ("EVENT=create", "SYNTH_ARG_EVENT=create"),
        ];
        for (from, to) in others {
            assert_eq!(said(&CREATED.replace(from, to)), None, "{to}");
        }
        for text in ["", " ", "libudev", "add@/devices/virtual/net/tap0 ACTION=add"] {
            assert_eq!(said(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_event_of_kvms_that_cannot_be_read_has_everything_looked_at() {
        let broken = [
            ("EVENT=create", "EVENT=paused"),
            ("PID=1234 ", ""),
            ("PID=1234", "PID=0"),
            ("PID=1234", "PID=-1"),
            ("PID=1234", "PID=4294967297"),
            ("PID=1234", "PID=12a"),
            ("PID=1234", "PID="),
            ("COUNT=2", "COUNT=99999999999999999999"),
            ("CREATED=7 ", ""),
        ];
        for (from, to) in broken {
            assert_eq!(said(&CREATED.replace(from, to)), Some(KvmMessage::Lost), "{to}");
        }
        // A message that is longer than the buffer is cut: what is in the buffer is not asked.
        let (_, text) = from(0, CREATED);
        let heard = Queue::default().take(Ok((text.len() + 1, Some(0))), &text);
        assert_eq!(heard, Ok(Some(KvmMessage::Lost)));
    }

    #[test]
    fn only_the_kernel_is_believed() {
        for sender in [Some(1), Some(u32::MAX), None] {
            let text = message(CREATED);
            assert_eq!(Queue::default().take(Ok((text.len(), sender)), &text), Ok(None));
        }
        let (received, text) = from(0, CREATED);
        assert!(matches!(
            Queue::default().take(received, &text),
            Ok(Some(KvmMessage::Vm(_)))
        ));
    }

    #[test]
    fn an_overrun_is_told_once_the_queue_is_empty() {
        let mut queue = Queue::default();
        let (created, text) = from(0, CREATED);
        assert_eq!(queue.take(Err(Errno::AGAIN), &[]), Ok(None));
        assert_eq!(queue.take(Err(Errno::NOBUFS), &[]), Ok(None));
        assert_eq!(queue.take(created, &text), Ok(None), "still dropping");
        assert_eq!(queue.take(Err(Errno::INTR), &[]), Ok(None));
        assert_eq!(queue.take(Err(Errno::AGAIN), &[]), Ok(Some(KvmMessage::Lost)));
        assert_eq!(queue.take(Err(Errno::AGAIN), &[]), Ok(None), "told once");
        assert!(matches!(queue.take(created, &text), Ok(Some(KvmMessage::Vm(_)))));
        assert_eq!(queue.take(Err(Errno::BADF), &[]), Err(Errno::BADF));
    }
}
