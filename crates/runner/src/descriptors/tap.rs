//! A queue of a tap interface (tuntap.rst of the kernel's documentation).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

const DEVICE: &str = "/dev/net/tun";
/// linux/if_tun.h.
const TUNSETIFF: Opcode = opcode::write::<std::ffi::c_int>(b'T', 202);
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
/// A virtio header before each frame, which VMMs expect of a tap descriptor.
const IFF_VNET_HDR: u16 = 0x4000;
/// Length of an interface's name with its NUL, in bytes (IFNAMSIZ).
const NAME_BYTES: usize = 16;

/// `struct ifreq` of linux/if.h with its member `ifr_flags`.
#[repr(C)]
#[derive(Debug)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    /// The union's other members are longer: 24 bytes where a pointer has 8, else 16.
    rest: [u8; 22],
}

/// Attaches to the interface. If there is none and the container has CAP_NET_ADMIN, the kernel makes one that ends with the VMM.
#[allow(unsafe_code)]
pub(super) fn open(interface: &str) -> io::Result<OwnedFd> {
    let at = |what: &'static str| move |cause: io::Error| io::Error::new(cause.kind(), format!("{what}: {cause}"));
    let device = OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = device.map_err(at("open /dev/net/tun"))?;
    let mut request = InterfaceRequest {
        name: [0; NAME_BYTES],
        flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR,
        rest: [0; 22],
    };
    // The last byte stays NUL.
    let name = interface.as_bytes().iter().take(NAME_BYTES - 1);
    request.name.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq` at the address it is passed; `InterfaceRequest` is at least as long
    // as that, and lives until the call returns. Nothing in it is an address.
    let attached = unsafe { ioctl(&device, Setter::<TUNSETIFF, InterfaceRequest>::new(request)) };
    attached.map_err(|error| at("TUNSETIFF")(error.into()))?;
    Ok(device.into())
}
