//! Calls to a plugin that kubelet would not make.

use std::path::Path;

use anyhow::Context;
use stelia_device_plugin::api::transport::Channel;
use stelia_device_plugin::api::v1beta1::{AllocateRequest, ContainerAllocateRequest, Empty};

use crate::answer::Answer;
use crate::kubelet::in_go;

/// `Allocate` for containers with these devices.
pub async fn allocate(socket: &Path, containers: &[Vec<String>]) -> anyhow::Result<Vec<Answer>> {
    let mut client = Channel::connect(socket).await?.plugin();
    let requests = containers.iter().map(|ids| ContainerAllocateRequest {
        devices_ids: ids.clone(),
    });
    let request = AllocateRequest {
        container_requests: requests.collect(),
    };
    let answered = client.allocate(request).await;
    let responses = answered
        .map_err(|status| anyhow::anyhow!(in_go(&status)))?
        .into_inner()
        .container_responses;
    let pairs = containers.iter().cloned().zip(responses);
    Ok(pairs.map(|(ids, response)| Answer::new(ids, response)).collect())
}

/// Connections with streams that nobody reads. Answers how many streams and connections there are, and what ends them when it
/// is dropped.
pub struct Unread {
    pub connections: usize,
    pub streams: usize,
    pub refusal: Option<String>,
    /// Dropped, they end.
    _held: Vec<Box<dyn Send>>,
}

/// Opens `connections` connections with `streams` streams each, as far as the plugin permits.
pub async fn open(socket: &Path, connections: usize, streams: usize) -> Unread {
    let mut unread = Unread {
        connections: 0,
        streams: 0,
        refusal: None,
        _held: Vec::new(),
    };
    for _ in 0..connections {
        let channel = match Channel::connect(socket).await {
            Ok(channel) => channel,
            Err(error) => {
                unread.refusal = Some(error.to_string());
                continue;
            }
        };
        unread.connections += 1;
        let mut client = channel.plugin();
        for _ in 0..streams {
            // A stream beyond the limit waits for one of the others to end, which none does.
            let began = tokio::time::timeout(STREAM_TIMEOUT, client.list_and_watch(Empty {})).await;
            match began {
                Ok(Ok(stream)) => {
                    unread.streams += 1;
                    unread._held.push(Box::new(stream));
                }
                Ok(Err(status)) => unread.refusal = Some(in_go(&status)),
                Err(_) => {
                    unread.refusal = Some("the stream did not begin".to_owned());
                    break;
                }
            }
        }
        unread._held.push(Box::new(client));
    }
    unread
}

/// How long the plugin may take to begin a stream.
const STREAM_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// A request to allocate with an ID of so many bytes.
pub async fn long_id(socket: &Path, bytes: usize) -> anyhow::Result<()> {
    let answers = allocate(socket, &[vec!["x".repeat(bytes)]]).await;
    answers.map(drop).context("Allocate")
}
