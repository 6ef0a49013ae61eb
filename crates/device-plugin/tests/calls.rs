//! Both services over a socket, as kubelet and a plugin use them.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use stelia_device_plugin::api::transport::{Channel, ConnectError, serve_plugin};
use stelia_device_plugin::api::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, PreferredAllocationRequest, RegisterRequest,
};
use stelia_device_plugin::api::{BoxStream, Code, DevicePlugin, HEALTHY, Request, Response, Status, async_trait};
use tokio::net::UnixListener;

struct Plugin;

#[async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<BoxStream<ListAndWatchResponse>>, Status> {
        let list = |id: &str| ListAndWatchResponse {
            devices: vec![Device {
                id: id.into(),
                health: HEALTHY.into(),
                topology: None,
            }],
        };
        let lists = futures_util::stream::iter([Ok(list("a")), Ok(list("b"))]);
        Ok(Response::new(Box::pin(lists)))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        match request.get_ref().container_requests.len() {
            0 => Err(Status::invalid_argument("there is no container")),
            _ => Ok(Response::new(AllocateResponse {
                container_responses: vec![Default::default()],
            })),
        }
    }
}

async fn plugin(folder: &tempfile::TempDir) -> Channel {
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_plugin(stream, Arc::new(Plugin)));
        }
    });
    Channel::connect(&path).await.unwrap()
}

#[tokio::test]
async fn a_plugin_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let channel = plugin(&folder).await;
    assert_eq!(channel.server_pid(), i32::try_from(std::process::id()).ok());
    let mut client = channel.plugin();
    let options = client.get_device_plugin_options(Empty {}).await.unwrap();
    assert!(!options.get_ref().pre_start_required);

    let mut stream = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    for expected in ["a", "b"] {
        assert_eq!(stream.message().await.unwrap().unwrap().devices[0].id, expected);
    }
    assert_eq!(stream.message().await.unwrap(), None);

    let one = AllocateRequest {
        container_requests: vec![ContainerAllocateRequest {
            devices_ids: vec!["a".into()],
        }],
    };
    assert_eq!(
        client.allocate(one).await.unwrap().get_ref().container_responses.len(),
        1
    );
    let refused = client.allocate(AllocateRequest::default()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::InvalidArgument, "there is no container")
    );
    let unknown = client
        .get_preferred_allocation(PreferredAllocationRequest::default())
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_request_beyond_the_limit_is_refused_and_the_connection_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut client = plugin(&folder).await.plugin();
    let large = AllocateRequest {
        container_requests: vec![ContainerAllocateRequest {
            devices_ids: vec!["x".repeat(65 << 10)],
        }],
    };
    assert_eq!(client.allocate(large).await.unwrap_err().code(), Code::OutOfRange);
    client.get_device_plugin_options(Empty {}).await.unwrap();
}

#[tokio::test]
async fn a_call_of_another_service_is_answered_that_it_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let mut client = plugin(&folder).await.kubelet();
    let refused = client.register(RegisterRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert_eq!(refused.message(), "there is no method /v1beta1.Registration/Register");
}

#[tokio::test]
async fn no_socket_is_an_error_with_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.sock");
    let error = Channel::connect(&path).await.err().unwrap();
    assert!(matches!(error, ConnectError::Connect { .. }));
    assert!(
        error.to_string().starts_with(&format!("connect to {}", path.display())),
        "{error}"
    );
}
