//! A Service as kube-proxy has it: a new connection goes to the endpoint of the EndpointSlice, an open one stays where it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::Method;
use serde_json::Value;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::apiserver::Api;

const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/stelia-system/endpointslices/stelia-placement";

/// Ports of an instance.
#[derive(Debug, Clone, Copy)]
struct Ports {
    listen: u16,
    probes: u16,
}

/// The Service of stelia-placement.
pub(super) struct Forwarder {
    pub(super) port: u16,
    /// By the address that the instance has in the EndpointSlice.
    instances: Arc<Mutex<BTreeMap<String, Ports>>>,
}

impl Forwarder {
    pub(super) async fn to_service(api: Api) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let instances = Arc::new(Mutex::new(BTreeMap::<String, Ports>::new()));
        let known = instances.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (api, known) = (api.clone(), known.clone());
                tokio::spawn(async move {
                    let slice = api.call(Method::GET, SLICE, None).await.unwrap_or_default();
                    let address = slice["endpoints"][0]["addresses"][0].as_str().unwrap_or_default();
                    let port = known
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get(address)
                        .map(|ports| ports.listen);
                    if let Some(port) = port {
                        forward(client, port).await;
                    }
                });
            }
        });
        Self { port, instances }
    }

    /// An instance, which the EndpointSlice names by this address.
    pub(super) fn add(&self, address: &str, listen: u16, probes: u16) {
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.insert(address.to_owned(), Ports { listen, probes });
    }

    /// The addresses of the instances' probes.
    pub(super) fn probes(&self) -> Vec<String> {
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances
            .values()
            .map(|ports| format!("127.0.0.1:{}", ports.probes))
            .collect()
    }
}

async fn forward(mut client: TcpStream, port: u16) {
    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

/// A proxy to the API server, which can refuse and end all connections.
pub(super) struct ApiServerProxy {
    pub(super) url: String,
    connected: watch::Sender<bool>,
}

impl ApiServerProxy {
    pub(super) async fn to(server: &str) -> Self {
        let port: u16 = server
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok())
            .expect("a port");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!(
            "https://127.0.0.1:{}",
            listener.local_addr().expect("its address").port()
        );
        let (connected, is_connected) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut is_connected = is_connected.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = forward(client, port) => {},
                        // Whoever is connected learns of it by the end of the connection.
                        _ = is_connected.wait_for(|connected| !connected) => {},
                    }
                });
            }
        });
        Self { url, connected }
    }

    pub(super) fn disconnect(&self) {
        let _ = self.connected.send(false);
    }

    pub(super) fn connect(&self) {
        let _ = self.connected.send(true);
    }
}

/// A number of the metrics of an instance, by the beginning of its line.
pub(super) async fn metric(address: &str, line: &str) -> u64 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut stream = TcpStream::connect(address).await.expect("the probes' port");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let found = answer.lines().find_map(|text| text.strip_prefix(line)).map(str::trim);
    found
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no metric {line}: {answer}"))
}

/// How many objects a list has.
pub(super) async fn count(api: &Api, list: &str) -> usize {
    let list = api.call(Method::GET, list, None).await.expect("a list");
    list["items"].as_array().map_or(0, Vec::len)
}

/// The status of a condition of an object.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
    condition["status"].as_str()
}
