//! A client that reaches the API server through a proxy: by CONNECT or SOCKS, or, where a server has no TLS, by a proxy that forwards its
//! requests, as client-go does. kube's own support is not used: it takes NO_PROXY for an exception of the proxy's own address.

use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use http::header::PROXY_AUTHORIZATION;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::proxy::{Proxy, Scheme};

/// A client with this configuration.
pub(crate) fn client(mut config: Config, proxy: &Proxy) -> kube::Result<Client> {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    let is_forwarded = config.cluster_url.scheme_str() == Some("http") && proxy.scheme != Scheme::Socks5;
    if let Some(header) = proxy.basic_auth().filter(|_| is_forwarded) {
        config.headers.push((PROXY_AUTHORIZATION, header.clone()));
    }
    match proxy.scheme {
        Scheme::Socks5 => {
            let to = proxy.clone();
            let connector = service_fn(move |server| socks(to.clone(), direct.clone(), server));
            over(connector, config, proxy)
        }
        Scheme::Http if is_forwarded => over(Forward::to(proxy, direct), config, proxy),
        Scheme::Http => over(tunnel(proxy, direct), config, proxy),
        Scheme::Https => {
            let secure = config.rustls_https_connector_with_connector(direct)?;
            if is_forwarded {
                over(Forward::to(proxy, secure), config, proxy)
            } else {
                over(tunnel(proxy, secure), config, proxy)
            }
        }
    }
}

fn tunnel<C>(proxy: &Proxy, connector: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.uri.clone(), connector);
    match proxy.basic_auth() {
        Some(header) => tunnel.with_auth(header.clone()),
        None => tunnel,
    }
}

/// A connection that a SOCKS proxy made; `SocksV5` alone would not say why the proxy itself is not reached.
async fn socks(
    proxy: Proxy,
    direct: HttpConnector,
    server: Uri,
) -> Result<<HttpConnector as Service<Uri>>::Response, BoxError> {
    let mut stream = Some(direct.oneshot(proxy.uri.clone()).await?);
    let reached = service_fn(move |_: Uri| {
        ready(
            stream
                .take()
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)),
        )
    });
    let socks = SocksV5::new(proxy.uri.clone(), reached);
    let socks = match proxy.user_and_password() {
        Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
        None => socks,
    };
    Ok(socks.oneshot(with_default_port(server)).await?)
}

/// A server with its port, where `SocksV5` would take 443 for it.
fn with_default_port(server: Uri) -> Uri {
    match (server.scheme_str(), server.host(), server.port()) {
        (Some("http"), Some(host), None) => format!("http://{host}:80").parse().unwrap_or(server),
        _ => server,
    }
}

/// A client over these connections, with the layers that kube's own has.
fn over<C>(connector: C, config: Config, proxy: &Proxy) -> kube::Result<Client>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError> + 'static,
{
    let name: Arc<str> = proxy.to_string().into();
    let connector = connector.map_err(move |cause| ThroughProxy {
        proxy: name.clone(),
        cause: cause.into(),
    });
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let client = legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let retry = config
        .default_retry
        .then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retry)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    // Until when an exec plugin's certificate is valid only kube's own client tells.
    let valid_until = match config.auth_info.exec {
        Some(_) => *Client::try_from(config.clone())?.valid_until(),
        None => None,
    };
    Ok(Client::new(service, config.default_namespace).with_valid_until(valid_until))
}

/// Why a connection through a proxy failed.
#[derive(Debug)]
struct ThroughProxy {
    proxy: Arc<str>,
    cause: BoxError,
}

impl fmt::Display for ThroughProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "through the proxy {}", self.proxy)
    }
}

impl std::error::Error for ThroughProxy {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.cause)
    }
}

/// Connects to a proxy that forwards requests, whatever server they are for.
#[derive(Debug, Clone)]
struct Forward<C> {
    proxy: Uri,
    connector: C,
}

impl<C> Forward<C> {
    fn to(proxy: &Proxy, connector: C) -> Self {
        Self {
            proxy: proxy.uri.clone(),
            connector,
        }
    }
}

impl<C> Service<Uri> for Forward<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
{
    type Response = Forwarded<C::Response>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = self.connector.call(self.proxy.clone());
        Box::pin(async move { Ok(Forwarded(connecting.await?)) })
    }
}

/// A connection whose requests name the server, as a proxy wants them.
struct Forwarded<S>(S);

impl<S: Connection> Connection for Forwarded<S> {
    fn connected(&self) -> Connected {
        self.0.connected().proxy(true)
    }
}

impl<S: Read + Unpin> Read for Forwarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for Forwarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
