//! What a command reads: nodes, and a pod to ask about; from files or from the API server.

use std::io::{self, Write};

use stelia_table::printable;

use crate::cli::{BySelector, Cli, PodOptions};
use crate::cluster::{Chosen, Cluster};
use crate::objects::{Objects, PodKey};
use crate::pod_request::PodRequest;
use crate::{Failure, apiserver, files};

/// The nodes, with all pods or without.
pub(crate) fn nodes(cli: &Cli, names: &[String], chosen: &BySelector, with_pods: bool) -> Result<Cluster, Failure> {
    cluster(read(cli, with_pods, chosen, None)?, names, chosen, None)
}

/// A pod of the cluster, as it is named.
#[derive(Debug)]
struct PodName {
    /// `None`: that of the kubeconfig's context, or in files any.
    namespace: Option<String>,
    name: String,
}

impl PodName {
    fn parse(text: &str, namespace: Option<&str>) -> Result<Self, Failure> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (namespace, text),
        };
        let is_name = |name: &str| stelia_koordinator::report::name::check(name.to_owned()).is_ok();
        if is_name(name) && namespace.is_none_or(is_name) {
            Ok(Self {
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
            })
        } else {
            let text = format!("{text:?} cannot be a pod: expected NAMESPACE/NAME or NAME");
            Err(Failure::Usage(text))
        }
    }
}

/// The pod that is asked about, and the cluster with its pods. `pod`: one of the cluster, with the namespace if it is given apart.
pub(crate) fn pod_request(
    cli: &Cli,
    pod: Option<(&str, Option<&str>)>,
    chosen: &BySelector,
    asked: &PodOptions,
) -> Result<(PodRequest, Cluster), Failure> {
    let (pod_request, objects) = match pod {
        Some((text, namespace)) => {
            let mut name = PodName::parse(text, namespace)?;
            let objects = read(cli, true, chosen, Some(&mut name))?;
            (of_cluster(&objects, &name, text, asked)?, objects)
        }
        // What needs no cluster is wrong before one is asked.
        None => (pod_request_of(asked)?, read(cli, true, chosen, None)?),
    };
    let cluster = cluster(objects, &[], chosen, pod_request.key.as_ref())?;
    Ok((pod_request.in_cluster(&cluster), cluster))
}

fn pod_request_of(asked: &PodOptions) -> Result<PodRequest, Failure> {
    match &asked.file {
        Some(path) => {
            let text = files::text(path).map_err(Failure::Other)?;
            PodRequest::of_manifest(&text, asked.of_file.as_deref(), &asked.allocation)
                .map_err(|cause| Failure::Other(format!("{}: {cause}", path.display())))
        }
        None if asked.containers.is_empty() => Err(Failure::Usage(
            "give a pod: -f FILE, or -c cpus=4,memory=8Gi".to_owned(),
        )),
        None => PodRequest::in_words(&asked.containers, &asked.allocation).map_err(Failure::Usage),
    }
}

fn of_cluster(objects: &Objects, wanted: &PodName, named: &str, asked: &PodOptions) -> Result<PodRequest, Failure> {
    let mut found = objects.asked.iter().filter(|((namespace, name), _)| {
        *name == wanted.name && wanted.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
    });
    let Some((key, pod)) = found.next() else {
        return Err(Failure::NoSuchObject(format!("there is no pod {named}")));
    };
    if let Some((other, _)) = found.next() {
        let (one, two) = (&key.0, &other.0);
        return Err(Failure::Usage(format!(
            "{named} is in several namespaces, such as {one} and {two}: give NAMESPACE/NAME"
        )));
    }
    PodRequest::of_cluster(key, pod, &asked.allocation).map_err(|cause| Failure::Other(format!("pod {named}: {cause}")))
}

/// Reads the objects; of the API server also the `pod`, whose namespace becomes known.
fn read(cli: &Cli, with_pods: bool, chosen: &BySelector, pod: Option<&mut PodName>) -> Result<Objects, Failure> {
    let mut objects = Objects::new(with_pods).asking_about(pod.as_ref().map(|pod| pod.name.as_str()));
    if !cli.from.is_empty() {
        files::read(&mut objects, &cli.from).map_err(Failure::Other)?;
        return Ok(objects);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| Failure::Other(format!("start: {cause}")))?;
    runtime.block_on(async {
        let client = apiserver::connect(cli.kubeconfig.as_deref(), cli.context.as_deref());
        let client = client.map_err(|cause| Failure::Other(cause.to_string()))?;
        if let Some(pod) = pod {
            let default = || client.default_namespace().to_owned();
            let namespace = pod.namespace.get_or_insert_with(default);
            let is_there = apiserver::read_pod(&mut objects, &client, namespace, &pod.name).await;
            if !is_there.map_err(Failure::Other)? {
                let (namespace, name) = (&namespace, &pod.name);
                return Err(Failure::NoSuchObject(format!("there is no pod {namespace}/{name}")));
            }
        }
        let labels = chosen.selector.as_ref().map(ToString::to_string);
        let read = apiserver::read(&mut objects, &client, labels.as_deref(), with_pods).await;
        read.map_err(Failure::Other)?;
        // The API server selects them.
        let is_none_read = objects.nodes.is_empty() && objects.unreadable.nodes.is_empty();
        if labels.is_some() && is_none_read {
            Err(no_node_selected())
        } else {
            Ok(objects)
        }
    })
}

/// The objects by node. Objects that could not be read are reported on standard error, one line each.
fn cluster(
    objects: Objects,
    names: &[String],
    chosen: &BySelector,
    without: Option<&PodKey>,
) -> Result<Cluster, Failure> {
    for line in objects.problems.lines() {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "stelia-cluster: {}", printable(&line));
    }
    let chosen = Chosen {
        names,
        selector: chosen.selector.as_ref(),
        without,
    };
    let cluster = Cluster::of(objects, &chosen)?;
    if chosen.selector.is_some() && cluster.members.is_empty() {
        Err(no_node_selected())
    } else {
        Ok(cluster)
    }
}

/// An empty answer would be read as one about VMs with these labels.
fn no_node_selected() -> Failure {
    Failure::NoSuchObject("no node has these labels: -l selects nodes by their own labels, not VMs or pods".to_owned())
}
