//! A device plugin whose devices are named on its command line, for tests of what a container gets and what kubelet records of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail};
use futures_util::{StreamExt as _, stream};
use stelia_device_plugin::api::transport::{Channel, serve_plugin};
use stelia_device_plugin::api::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse, Device,
    DevicePluginOptions, DeviceSpec, Empty, ListAndWatchResponse, NumaNode, RegisterRequest, TopologyInfo,
};
use stelia_device_plugin::api::{
    BoxStream, DevicePlugin, HEALTHY, KUBELET_SOCKET, Request, Response, Status, VERSION, async_trait,
};
use tokio::net::UnixListener;

use crate::folder;

/// A device: `ID=NODE:PATH,PATH…`, the device nodes of which its container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offered {
    pub id: String,
    pub node: i64,
    /// The paths of its device nodes, in the node and in the container.
    pub paths: Vec<String>,
}

impl FromStr for Offered {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts = || {
            let (id, rest) = text.split_once('=')?;
            let (node, paths) = rest.split_once(':')?;
            Some((id, node.parse().ok()?, paths))
        };
        let (id, node, paths) = parts().with_context(|| format!("not ID=NODE:PATH,PATH…: {text:?}"))?;
        Ok(Self {
            id: id.to_owned(),
            node,
            paths: paths.split(',').map(str::to_owned).collect(),
        })
    }
}

/// Registers `resource` and offers these devices until accepting fails.
pub async fn offer(folder: &Path, resource: &str, devices: Vec<Offered>) -> anyhow::Result<()> {
    let endpoint = format!("{}.sock", resource.replace('/', "_"));
    let socket = folder.join(&endpoint);
    let listener = folder::listen(&socket)?;
    let devices = devices.into_iter().map(|one| (one.id.clone(), one)).collect();
    let plugin = Arc::new(Plugin(devices));
    // kubelet connects to the plugin before it answers.
    tokio::try_join!(serve(&listener, plugin), register(folder, resource, endpoint))?;
    Ok(())
}

async fn serve(listener: &UnixListener, plugin: Arc<Plugin>) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await.context("accept a connection of kubelet's")?;
        tokio::spawn(serve_plugin(stream, plugin.clone()));
    }
}

async fn register(folder: &Path, resource: &str, endpoint: String) -> anyhow::Result<()> {
    let channel = Channel::connect(&folder.join(KUBELET_SOCKET)).await?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint,
        resource_name: resource.to_owned(),
        options: None,
    };
    let registered = channel.kubelet().register(request).await;
    registered.map_err(|status| anyhow::anyhow!("register {resource}: {status}"))?;
    Ok(())
}

struct Plugin(BTreeMap<String, Offered>);

impl Plugin {
    fn answer(&self, container: &ContainerAllocateRequest) -> anyhow::Result<ContainerAllocateResponse> {
        // Devices of several may be the same: `/dev/vfio/vfio` is every group's.
        let mut devices: Vec<DeviceSpec> = Vec::new();
        for id in &container.devices_ids {
            let Some(offered) = self.0.get(id) else {
                bail!("no device {id}");
            };
            for path in &offered.paths {
                let spec = DeviceSpec {
                    container_path: path.clone(),
                    host_path: path.clone(),
                    permissions: "rw".to_owned(),
                };
                if !devices.contains(&spec) {
                    devices.push(spec);
                }
            }
        }
        Ok(ContainerAllocateResponse {
            devices,
            ..ContainerAllocateResponse::default()
        })
    }
}

#[async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<BoxStream<ListAndWatchResponse>>, Status> {
        let device = |one: &Offered| Device {
            id: one.id.clone(),
            health: HEALTHY.to_owned(),
            topology: Some(TopologyInfo {
                nodes: vec![NumaNode { id: one.node }],
            }),
        };
        let devices = self.0.values().map(device).collect();
        let lists = stream::iter([Ok(ListAndWatchResponse { devices })]).chain(stream::pending());
        Ok(Response::new(Box::pin(lists)))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let answers = request
            .get_ref()
            .container_requests
            .iter()
            .map(|container| self.answer(container));
        let answers: anyhow::Result<Vec<ContainerAllocateResponse>> = answers.collect();
        let container_responses = answers.map_err(|error| Status::not_found(error.to_string()))?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> Plugin {
        let devices = ["a=0:/dev/vfio/12,/dev/vfio/vfio", "b=1:/dev/vfio/13,/dev/vfio/vfio"];
        let devices = devices.map(|text| text.parse::<Offered>().unwrap());
        Plugin(devices.into_iter().map(|one| (one.id.clone(), one)).collect())
    }

    #[test]
    fn two_devices_of_a_container_have_what_is_common_to_them_once() {
        let request = ContainerAllocateRequest {
            devices_ids: vec!["a".to_owned(), "b".to_owned()],
        };
        let answer = plugin().answer(&request).unwrap();
        let paths: Vec<&str> = answer.devices.iter().map(|one| one.host_path.as_str()).collect();
        assert_eq!(paths, ["/dev/vfio/12", "/dev/vfio/vfio", "/dev/vfio/13"]);
    }

    #[test]
    fn a_device_that_is_not_offered_is_refused() {
        let request = ContainerAllocateRequest {
            devices_ids: vec!["c".to_owned()],
        };
        assert_eq!(plugin().answer(&request).unwrap_err().to_string(), "no device c");
        for text in ["a", "a=0", "a=x:/dev/null"] {
            assert!(text.parse::<Offered>().is_err(), "{text}");
        }
    }
}
