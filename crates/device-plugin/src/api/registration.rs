//! kubelet's service, by which plugins register.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::service::Service;
use tonic::Status;
use tonic::body::Body;

use crate::api::messages::{Empty, RegisterRequest};
use crate::api::service::{self, BoxError};
use crate::api::transport::Channel;

const REGISTER: &str = "/v1beta1.Registration/Register";

/// What answers registrations.
pub trait Registration: Send + Sync + 'static {
    /// kubelet answers when it has connected to the plugin's socket.
    fn register(&self, request: RegisterRequest) -> impl Future<Output = Result<Empty, Status>> + Send;
}

/// Serves a [`Registration`]; [`crate::api::transport::serve_connection`] takes it.
pub struct RegistrationServer<T>(Arc<T>);

impl<T> RegistrationServer<T> {
    /// The server of `registration`.
    pub fn new(registration: Arc<T>) -> Self {
        Self(registration)
    }
}

impl<T> Clone for RegistrationServer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T, B> Service<Request<B>> for RegistrationServer<T>
where
    T: Registration,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError> + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let registration = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match request.uri().path() {
                REGISTER => service::unary(request, |message| registration.register(message)).await,
                other => service::unknown_method(other),
            })
        })
    }
}

/// The plugin's side of a registration.
#[derive(Clone)]
pub struct RegistrationClient(Channel);

impl RegistrationClient {
    /// The client of the kubelet at the other end of `channel`.
    pub fn new(channel: Channel) -> Self {
        Self(channel)
    }

    /// Registers a plugin, whose socket has to accept connections before kubelet answers.
    ///
    /// # Errors
    ///
    /// kubelet's refusal, or that the connection ended.
    pub async fn register(&self, request: RegisterRequest) -> Result<(), Status> {
        service::call::<_, Empty>(&self.0, REGISTER, request)
            .await
            .map(|Empty {}| ())
    }
}
