//! The service of a plugin, which kubelet calls.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use http::{Request, Response};
use hyper::service::Service;
use tonic::body::Body;
use tonic::{Status, Streaming};

use crate::api::messages::{
    AllocateRequest, AllocateResponse, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};
use crate::api::service::{self, BoxError};
use crate::api::transport::Channel;

const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
const PREFERRED_ALLOCATION: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
const PRE_START_CONTAINER: &str = "/v1beta1.DevicePlugin/PreStartContainer";

/// What answers kubelet's calls.
pub trait DevicePlugin: Send + Sync + 'static {
    /// Which optional calls this answers.
    fn options(&self) -> DevicePluginOptions {
        DevicePluginOptions::default()
    }

    /// All devices, and all of them again after each change. The stream ends when the plugin no longer offers any.
    fn list_and_watch(&self) -> impl Stream<Item = Result<ListAndWatchResponse, Status>> + Send + 'static;

    /// What the containers get. The text of an error is in the event of the pod that kubelet rejects.
    fn allocate(&self, request: AllocateRequest) -> impl Future<Output = Result<AllocateResponse, Status>> + Send;

    /// Which of the available devices would be best; called only if [`Self::options`] says so.
    fn preferred_allocation(
        &self,
        _request: PreferredAllocationRequest,
    ) -> impl Future<Output = Result<PreferredAllocationResponse, Status>> + Send {
        std::future::ready(Err(Status::unimplemented("this plugin prefers no device to another")))
    }

    /// Called before each container starts, only if [`Self::options`] says so.
    fn pre_start_container(
        &self,
        _request: PreStartContainerRequest,
    ) -> impl Future<Output = Result<PreStartContainerResponse, Status>> + Send {
        std::future::ready(Err(Status::unimplemented(
            "this plugin does nothing before a container starts",
        )))
    }
}

/// Serves a [`DevicePlugin`]; [`crate::api::transport::serve_connection`] takes it.
pub struct DevicePluginServer<T>(Arc<T>);

impl<T> DevicePluginServer<T> {
    /// The server of `plugin`.
    pub fn new(plugin: Arc<T>) -> Self {
        Self(plugin)
    }
}

impl<T> Clone for DevicePluginServer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T, B> Service<Request<B>> for DevicePluginServer<T>
where
    T: DevicePlugin,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError> + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let plugin = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match request.uri().path() {
                OPTIONS => service::unary(request, |Empty {}| std::future::ready(Ok(plugin.options()))).await,
                LIST_AND_WATCH => service::streaming(request, |Empty {}| plugin.list_and_watch()).await,
                PREFERRED_ALLOCATION => service::unary(request, |message| plugin.preferred_allocation(message)).await,
                ALLOCATE => service::unary(request, |message| plugin.allocate(message)).await,
                PRE_START_CONTAINER => service::unary(request, |message| plugin.pre_start_container(message)).await,
                other => service::unknown_method(other),
            })
        })
    }
}

/// kubelet's side.
#[derive(Clone)]
pub struct DevicePluginClient(Channel);

impl DevicePluginClient {
    /// The client of the plugin at the other end of `channel`.
    pub fn new(channel: Channel) -> Self {
        Self(channel)
    }

    /// Which optional calls the plugin answers.
    ///
    /// # Errors
    ///
    /// The plugin's refusal, or that the connection ended.
    pub async fn options(&self) -> Result<DevicePluginOptions, Status> {
        service::call(&self.0, OPTIONS, Empty {}).await
    }

    /// The plugin's devices, and all of them again after each change.
    ///
    /// # Errors
    ///
    /// The plugin's refusal, or that the connection ended.
    pub async fn list_and_watch(&self) -> Result<Streaming<ListAndWatchResponse>, Status> {
        service::call_streaming(&self.0, LIST_AND_WATCH, Empty {}).await
    }

    /// What containers get.
    ///
    /// # Errors
    ///
    /// The plugin's refusal, or that the connection ended.
    pub async fn allocate(&self, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        service::call(&self.0, ALLOCATE, request).await
    }

    /// Which devices the plugin would choose.
    ///
    /// # Errors
    ///
    /// The plugin's refusal, or that the connection ended.
    pub async fn preferred_allocation(
        &self,
        request: PreferredAllocationRequest,
    ) -> Result<PreferredAllocationResponse, Status> {
        service::call(&self.0, PREFERRED_ALLOCATION, request).await
    }

    /// That a container is about to start.
    ///
    /// # Errors
    ///
    /// The plugin's refusal, or that the connection ended.
    pub async fn pre_start_container(
        &self,
        request: PreStartContainerRequest,
    ) -> Result<PreStartContainerResponse, Status> {
        service::call(&self.0, PRE_START_CONTAINER, request).await
    }
}
