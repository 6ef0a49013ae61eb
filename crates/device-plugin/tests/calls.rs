//! Both services over a socket, as kubelet and a plugin use them.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use futures_util::Stream;
use stelia_device_plugin::api::device_plugin::{DevicePlugin, DevicePluginClient, DevicePluginServer};
use stelia_device_plugin::api::messages::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, Device, Empty, ListAndWatchResponse,
    PreferredAllocationRequest, RegisterRequest,
};
use stelia_device_plugin::api::registration::{Registration, RegistrationClient, RegistrationServer};
use stelia_device_plugin::api::transport::{Channel, ConnectError, serve_connection};
use stelia_device_plugin::api::{Code, HEALTHY, Status, VERSION};
use tokio::net::UnixListener;

struct Plugin;

impl DevicePlugin for Plugin {
    fn list_and_watch(&self) -> impl Stream<Item = Result<ListAndWatchResponse, Status>> + Send + 'static {
        let list = |id: &str| ListAndWatchResponse {
            devices: vec![Device {
                id: id.into(),
                health: HEALTHY.into(),
                topology: None,
            }],
        };
        futures_util::stream::iter([Ok(list("a")), Ok(list("b"))])
    }

    async fn allocate(&self, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        match request.container_requests.len() {
            0 => Err(Status::invalid_argument("there is no container")),
            _ => Ok(AllocateResponse {
                container_responses: vec![Default::default()],
            }),
        }
    }
}

struct Kubelet;

impl Registration for Kubelet {
    async fn register(&self, request: RegisterRequest) -> Result<Empty, Status> {
        match request.version.as_str() {
            VERSION => Ok(Empty {}),
            other => Err(Status::invalid_argument(format!("version {other}"))),
        }
    }
}

async fn plugin(folder: &tempfile::TempDir) -> Channel {
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream, DevicePluginServer::new(Arc::new(Plugin))));
        }
    });
    Channel::connect(&path).await.unwrap()
}

#[tokio::test]
async fn a_plugin_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let channel = plugin(&folder).await;
    assert_eq!(channel.server_pid(), i32::try_from(std::process::id()).ok());
    let client = DevicePluginClient::new(channel);
    assert!(!client.options().await.unwrap().pre_start_required);

    let mut stream = client.list_and_watch().await.unwrap();
    for expected in ["a", "b"] {
        assert_eq!(stream.message().await.unwrap().unwrap().devices[0].id, expected);
    }
    assert_eq!(stream.message().await.unwrap(), None);

    let one = AllocateRequest {
        container_requests: vec![ContainerAllocateRequest {
            devices_ids: vec!["a".into()],
        }],
    };
    assert_eq!(client.allocate(one).await.unwrap().container_responses.len(), 1);
    let refused = client.allocate(AllocateRequest::default()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::InvalidArgument, "there is no container")
    );
    let unknown = client
        .preferred_allocation(PreferredAllocationRequest::default())
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_request_beyond_the_limit_is_refused_and_the_connection_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let client = DevicePluginClient::new(plugin(&folder).await);
    let large = AllocateRequest {
        container_requests: vec![ContainerAllocateRequest {
            devices_ids: vec!["x".repeat(65 << 10)],
        }],
    };
    assert_eq!(client.allocate(large).await.unwrap_err().code(), Code::OutOfRange);
    client.options().await.unwrap();
}

#[tokio::test]
async fn a_plugin_registers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve_connection(stream, RegistrationServer::new(Arc::new(Kubelet))).await
    });
    let client = RegistrationClient::new(Channel::connect(&path).await.unwrap());
    let request = RegisterRequest {
        version: VERSION.into(),
        ..RegisterRequest::default()
    };
    client.register(request.clone()).await.unwrap();
    let refused = client
        .register(RegisterRequest {
            version: "v9".into(),
            ..request
        })
        .await
        .unwrap_err();
    assert_eq!(refused.message(), "version v9");
    drop(client);
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_of_another_service_is_answered_that_it_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let client = RegistrationClient::new(plugin(&folder).await);
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
        error
            .to_string()
            .starts_with(&format!("connect to {}: ", path.display())),
        "{error}"
    );
}
