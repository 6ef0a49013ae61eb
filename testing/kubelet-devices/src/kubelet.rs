//! kubelet's device manager: its registration service, a stream to each plugin, and its calls.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use stelia_device_plugin::api::transport::{Channel, serve_kubelet};
use stelia_device_plugin::api::v1beta1::{AllocateRequest, ContainerAllocateRequest, Empty, RegisterRequest};
use stelia_device_plugin::api::{
    DevicePluginClient, KUBELET_SOCKET, Registration, Request, Response, Status, VERSION, async_trait,
};

use crate::answer::Answer;
use crate::manager::{Allocation, Choice, Container, Manager};
use crate::{checkpoint, folder};

/// How long a plugin may take to answer. kubelet itself bounds only connecting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// kubelet, while it runs.
pub struct Kubelet {
    folder: PathBuf,
    state: PathBuf,
    manager: Mutex<Manager>,
    /// By resource: the plugin that registered last.
    plugins: Mutex<BTreeMap<String, DevicePluginClient<Channel>>>,
    /// Containers are admitted one after the other.
    admission: tokio::sync::Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In the form in which Go's gRPC library prints it, which is what kubelet puts into the event of the pod.
pub fn in_go(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

impl Kubelet {
    /// A start: the folder is wiped, allocations are read from `state`.
    pub fn start(folder: &Path, state: &Path) -> anyhow::Result<Arc<Self>> {
        folder::wipe(folder)?;
        let manager = match fs::read(state) {
            Ok(bytes) => {
                let read = serde_json::from_slice(&bytes);
                Manager::new(read.with_context(|| format!("parse {}", state.display()))?)
            }
            Err(cause) if cause.kind() == ErrorKind::NotFound => Manager::default(),
            Err(cause) => return Err(cause).with_context(|| format!("read {}", state.display())),
        };
        Ok(Arc::new(Self {
            folder: folder.to_owned(),
            state: state.to_owned(),
            manager: Mutex::new(manager),
            plugins: Mutex::new(BTreeMap::new()),
            admission: tokio::sync::Mutex::new(()),
        }))
    }

    /// Answers registrations until accepting fails.
    pub async fn serve(self: Arc<Self>) -> anyhow::Result<()> {
        let socket = self.folder.join(KUBELET_SOCKET);
        let listener = folder::listen(&socket)?;
        let registrar = Arc::new(Registrar(self));
        loop {
            let (stream, _) = listener
                .accept()
                .await
                .with_context(|| format!("accept on {}", socket.display()))?;
            let registrar = registrar.clone();
            tokio::spawn(async move {
                if let Err(error) = serve_kubelet(stream, registrar).await {
                    eprintln!("a connection to {KUBELET_SOCKET}: {error}");
                }
            });
        }
    }

    pub fn show(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::to_value(&*lock(&self.manager)).context("write JSON")
    }

    /// Devices for a container, as at the admission of its pod.
    pub async fn allocate(&self, container: Container<'_>, resource: &str, count: usize) -> anyhow::Result<Answer> {
        let _turn = self.admission.lock().await;
        let chosen = lock(&self.manager).choose(container, resource, count)?;
        let devices = match chosen {
            Choice::Allocated(answer) => return Ok(answer),
            Choice::Devices(devices) => devices,
        };
        let plugin = lock(&self.plugins).get(resource).cloned();
        let Some(mut plugin) = plugin else {
            bail!("unknown Device Plugin {resource}");
        };
        let ids: Vec<String> = devices.iter().cloned().collect();
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest {
                devices_ids: ids.clone(),
            }],
        };
        let answered = in_time("Allocate", plugin.allocate(request)).await;
        let mut responses = answered
            .map_err(|status| anyhow::anyhow!(in_go(&status)))?
            .into_inner()
            .container_responses;
        let (Some(response), true) = (responses.pop(), responses.is_empty()) else {
            bail!("the plugin of {resource} did not answer for one container");
        };
        let answer = Answer::new(ids, response);
        let mut manager = lock(&self.manager);
        let nodes = manager.nodes(resource, &devices);
        manager.allocate(Allocation {
            pod: container.pod.to_owned(),
            container: container.name.to_owned(),
            resource: resource.to_owned(),
            devices,
            nodes,
            answer: answer.clone(),
        });
        drop(manager);
        self.save()?;
        Ok(answer)
    }

    pub fn free(&self, pod: &str) -> anyhow::Result<()> {
        lock(&self.manager).free(pod);
        self.save()
    }

    /// Writes what outlives this process: a file of its own, and kubelet's, which others read.
    fn save(&self) -> anyhow::Result<()> {
        let manager = lock(&self.manager);
        let bytes = serde_json::to_vec(&manager.saved()).context("write JSON")?;
        fs::write(&self.state, bytes).with_context(|| format!("write {}", self.state.display()))?;
        checkpoint::write(&manager, &self.folder)
    }

    /// As kubelet: it connects to the plugin before it answers.
    async fn register(self: &Arc<Self>, request: RegisterRequest) -> anyhow::Result<()> {
        let RegisterRequest {
            version,
            endpoint,
            resource_name: resource,
            ..
        } = request;
        if version != VERSION {
            bail!("requested API version {version:?} is not supported by kubelet. Supported version is {VERSION}");
        }
        let is_extended = resource.split_once('/').is_some_and(|(domain, name)| {
            domain.contains('.') && !domain.ends_with("kubernetes.io") && !name.is_empty()
        });
        if !is_extended {
            bail!("the ResourceName {resource:?} is invalid");
        }
        let channel = Channel::connect(&self.folder.join(&endpoint)).await?;
        let mut client = channel.plugin();
        let options = in_time("GetDevicePluginOptions", client.get_device_plugin_options(Empty {})).await;
        options.map_err(|status| anyhow::anyhow!(in_go(&status)))?;
        let registration = lock(&self.manager).register(&resource, &endpoint);
        self.save()?;
        tokio::spawn(Arc::clone(self).watch(resource.clone(), registration, client.clone()));
        lock(&self.plugins).insert(resource.clone(), client);
        println!("registered: {resource} at {endpoint}");
        Ok(())
    }

    /// Reads a plugin's devices until its stream ends.
    async fn watch(self: Arc<Self>, resource: String, registration: u64, mut client: DevicePluginClient<Channel>) {
        let ended = match client.list_and_watch(Empty {}).await {
            Err(status) => status,
            Ok(mut stream) => loop {
                match stream.get_mut().message().await {
                    Ok(Some(list)) => {
                        lock(&self.manager).list(&resource, registration, list.devices);
                        if let Err(error) = self.save() {
                            eprintln!("{error:#}");
                        }
                    }
                    Ok(None) => break Status::ok("the plugin ended it"),
                    Err(status) => break status,
                }
            },
        };
        lock(&self.manager).disconnect(&resource);
        println!("the stream of {resource} ended: {}", in_go(&ended));
    }
}

async fn in_time<T>(what: &str, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(ANSWER_TIMEOUT, call).await {
        Ok(answered) => answered,
        Err(_) => Err(Status::deadline_exceeded(format!(
            "{what}: no answer within {} s",
            ANSWER_TIMEOUT.as_secs()
        ))),
    }
}

struct Registrar(Arc<Kubelet>);

#[async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        match self.0.register(request.into_inner()).await {
            Ok(()) => Ok(Response::new(Empty {})),
            // What a Go service returns without a code is Unknown.
            Err(error) => {
                println!("a registration was refused: {error:#}");
                Err(Status::unknown(format!("{error:#}")))
            }
        }
    }
}
