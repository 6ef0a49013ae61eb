//! A request to the device plugin, as bytes on its socket.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use stelia_device_plugin::api::v1beta1::{AllocateRequest, AllocateResponse};
use stelia_device_plugin::fuzzing::{answer, ids};
use steliad_fuzz::same;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = AllocateRequest::decode(bytes) else {
        return;
    };
    let asked: Vec<&str> = request
        .container_requests
        .iter()
        .flat_map(|container| container.devices_ids.iter().map(String::as_str))
        .collect();
    match answer(&request) {
        Ok(response) => {
            let listed = ids();
            assert!(!request.container_requests.is_empty());
            assert_eq!(response.container_responses.len(), request.container_requests.len());
            assert!(request.container_requests.iter().all(|one| one.devices_ids.len() == 1));
            assert!(asked.iter().all(|id| listed.iter().any(|listed| listed == id)));
            assert_eq!(asked.iter().collect::<BTreeSet<_>>().len(), asked.len());
            let again = AllocateResponse::decode(response.encode_to_vec().as_slice());
            same(&again.as_ref().ok(), &Some(&response), "an answer");
        }
        Err(status) => {
            let text = status.message();
            assert!(text.len() < 1000 && !text.contains(char::is_control), "{text:?}");
        }
    }
});
