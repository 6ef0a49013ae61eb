//! For `fuzz/`: an Allocate of whoever reaches the socket.

use crate::api::Status;
use crate::api::v1beta1::{AllocateRequest, AllocateResponse};

use crate::allocate::{Available, allocate};
use crate::offer::Offer;
use crate::required_files::{Paths, RequiredFiles};

/// How many devices there are.
pub const DEVICES: u32 = 12;

/// The answer, while VMs are admitted.
pub fn answer(request: &AllocateRequest) -> Result<AllocateResponse, Status> {
    let offer = Offer::healthy(DEVICES);
    let paths = Paths {
        runner: "/usr/bin/stelia-runner".into(),
        socket_folder: "/run/stelia/runner".into(),
        devices: vec!["/dev/kvm".into()],
    };
    let files = RequiredFiles {
        problem: None,
        devices: vec!["/dev/kvm".into()],
    };
    let available = Available {
        offer: &offer,
        paths: &paths,
        files: &files,
        cdi: false,
    };
    Ok(allocate(&available, request)?)
}

/// The devices' IDs.
pub fn ids() -> Vec<String> {
    let offer = Offer::healthy(DEVICES);
    offer
        .list()
        .into_iter()
        .flat_map(|list| list.devices)
        .map(|device| device.id)
        .collect()
}
