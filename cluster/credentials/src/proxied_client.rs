//! A client that reaches the API server through a proxy, by CONNECT or SOCKS. kube's own support is not used: it takes NO_PROXY for an
//! exception of the proxy's own address, and fails where it cannot read it.

use std::future::ready;
use std::io;
use std::sync::Arc;

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::proxy::{Proxy, Scheme};

/// A client with this configuration.
pub(crate) fn client(mut config: Config, proxy: &Proxy) -> kube::Result<Client> {
    config.cluster_url = with_port(config.cluster_url);
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    match proxy.scheme {
        Scheme::Socks5 => {
            let to = proxy.clone();
            let connector = service_fn(move |server| socks(to.clone(), direct.clone(), server));
            over(connector, config, proxy)
        }
        Scheme::Http => over(tunnel(proxy, direct), config, proxy),
        Scheme::Https => {
            let secure = config.rustls_https_connector_with_connector(direct)?;
            over(tunnel(proxy, secure), config, proxy)
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
        let once = stream.take();
        ready(once.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    let socks = SocksV5::new(proxy.uri.clone(), reached);
    let socks = match proxy.user_and_password() {
        Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
        None => socks,
    };
    Ok(socks.oneshot(server).await?)
}

/// A server without TLS with its port, where a proxy would be asked for 443.
fn with_port(server: Uri) -> Uri {
    match (server.scheme_str(), server.host(), server.port()) {
        (Some("http"), Some(host), None) => format!("http://{host}:80{}", server.path()).parse().unwrap_or(server),
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
    let retry = || RetryLayer::new(RetryPolicy::server_retry());
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(retry))
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
#[derive(Debug, thiserror::Error)]
#[error("through the proxy {proxy}")]
struct ThroughProxy {
    proxy: Arc<str>,
    #[source]
    cause: BoxError,
}
