//! What `kubectl kustomize` prints for a folder, for the few things that the folders here use. Anything else in a kustomization.yaml is an error.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{cluster, documents, folders, kind, name, only, read, repository, strings};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Kustomization {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<PathBuf>,
    #[serde(default)]
    components: Vec<PathBuf>,
    #[serde(default)]
    patches: Vec<Patch>,
    #[serde(default)]
    images: Vec<Image>,
    #[serde(default)]
    config_map_generator: Vec<Generator>,
}

/// A ConfigMap of files.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Generator {
    name: String,
    namespace: String,
    /// `key=file`.
    files: Vec<String>,
}

impl Generator {
    fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|file| file.split_once('=').expect("key=file"))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    path: Option<PathBuf>,
    patch: Option<String>,
    target: Target,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    kind: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Image {
    name: String,
    new_name: String,
    new_tag: String,
}

/// RFC 6902.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Change {
    Add { path: String, value: Value },
}

fn kustomization(folder: &Path) -> Kustomization {
    let path = folder.join("kustomization.yaml");
    serde_saphyr::from_str(&read(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What stands for the hash of a generated object's content, which kustomize adds to its name.
pub const HASH: &str = "hashhashha";

/// The objects of a folder with what it is built on.
pub fn built(folder: &Path) -> Vec<Value> {
    let mut objects = Vec::new();
    build(folder, &mut objects);
    let mut names = BTreeSet::new();
    generated(folder, &mut names);
    hashed(&mut objects, &names);
    objects
}

/// The names of ConfigMaps that a folder generates, with what it is built on.
pub fn generated(folder: &Path, names: &mut BTreeSet<String>) {
    let of = kustomization(folder);
    names.extend(of.config_map_generator.into_iter().map(|generator| generator.name));
    let folders = of.resources.into_iter().chain(of.components);
    let folders = folders.map(|path| folder.join(path)).filter(|path| path.is_dir());
    folders.for_each(|folder| generated(&folder, names));
}

/// A generated object's name gets a hash, and so does every reference to it.
pub fn hashed(objects: &mut [Value], names: &BTreeSet<String>) {
    for object in objects {
        if kind(object) == "ConfigMap" && names.contains(name(object)) {
            object["metadata"]["name"] = json!(format!("{}-{HASH}", name(object)));
        }
        // kustomize takes what a role names for a ConfigMap's name, whichever resource the rule is about.
        if ["Role", "ClusterRole"].contains(&kind(object)) {
            let rules = object["rules"].as_array_mut().into_iter().flatten();
            let named = rules.filter_map(|rule| rule.get_mut("resourceNames")?.as_array_mut());
            named.flatten().for_each(|one| refer(one, names));
        }
        follow(object, names);
    }
}

/// The fields of pods that name a ConfigMap.
fn follow(value: &mut Value, names: &BTreeSet<String>) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|one| follow(one, names)),
        Value::Object(members) => {
            for (key, member) in members {
                if ["configMap", "configMapRef", "configMapKeyRef"].contains(&key.as_str())
                    && member["name"].is_string()
                {
                    refer(&mut member["name"], names);
                }
                follow(member, names);
            }
        }
        _ => {}
    }
}

fn refer(value: &mut Value, names: &BTreeSet<String>) {
    if let Some(named) = value.as_str().filter(|named| names.contains(*named)) {
        *value = json!(format!("{named}-{HASH}"));
    }
}

fn build(folder: &Path, objects: &mut Vec<Value>) {
    build_as(kustomization(folder), folder, objects);
}

fn build_as(of: Kustomization, folder: &Path, objects: &mut Vec<Value>) {
    match of.kind.as_str() {
        "Kustomization" => assert_eq!(of.api_version, "kustomize.config.k8s.io/v1beta1"),
        "Component" => assert_eq!(of.api_version, "kustomize.config.k8s.io/v1alpha1"),
        other => panic!("{}: kind {other}", folder.display()),
    }
    for resource in &of.resources {
        let path = folder.join(resource);
        if path.is_dir() {
            build(&path, objects)
        } else {
            objects.extend(documents(&path))
        }
    }
    for component in &of.components {
        build(&folder.join(component), objects);
    }
    for patch in &of.patches {
        let text = match (&patch.path, &patch.patch) {
            (Some(path), None) => read(&folder.join(path)),
            (None, Some(text)) => text.clone(),
            _ => panic!("{}: a patch is a path or a text", folder.display()),
        };
        let meant = |object: &Value| kind(object) == patch.target.kind && name(object) == patch.target.name;
        if text.contains("$patch: delete") {
            objects.retain(|object| !meant(object));
            continue;
        }
        let target = objects.iter_mut().find(|object| meant(object)).expect("a target");
        let changes: Vec<Change> = serde_saphyr::from_str(&text).expect("a patch");
        for Change::Add { path, value } in changes {
            let (parent, key) = path.rsplit_once('/').expect("a pointer");
            match target.pointer_mut(parent) {
                Some(Value::Array(list)) if key == "-" => list.push(value),
                Some(Value::Object(members)) => drop(members.insert(key.into(), value)),
                _ => panic!("nothing at {parent}"),
            }
        }
    }
    for generator in &of.config_map_generator {
        let content = |(key, file): (&str, &str)| (key.to_owned(), Value::from(read(&folder.join(file))));
        let data: serde_json::Map<String, Value> = generator.files().map(content).collect();
        let metadata = json!({"name": generator.name, "namespace": generator.namespace});
        objects.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}));
    }
    for image in &of.images {
        let containers = |object: &mut Value| object["spec"]["template"]["spec"]["containers"].take();
        for object in objects
            .iter_mut()
            .filter(|object| object.pointer("/spec/template/spec/containers").is_some())
        {
            let mut all = containers(object);
            for container in all.as_array_mut().into_iter().flatten() {
                let named = container["image"].as_str().and_then(|named| named.rsplit_once(':'));
                if named.is_some_and(|(named, _)| named == image.name) {
                    container["image"] = json!(format!("{}:{}", image.new_name, image.new_tag));
                }
            }
            object["spec"]["template"]["spec"]["containers"] = all;
        }
    }
}

#[test]
fn every_file_of_a_folder_is_in_its_kustomization() {
    let every = ["base".into()].into_iter().chain(
        ["components", "overlays", "placement"]
            .into_iter()
            .flat_map(|of| folders(&cluster(of))),
    );
    for folder in every.map(|folder: PathBuf| cluster("").join(folder)) {
        let of = kustomization(&folder);
        let patches = of.patches.into_iter().filter_map(|patch| patch.path);
        let generated = of.config_map_generator.iter().flat_map(Generator::files);
        let generated: Vec<PathBuf> = generated.map(|(_, file)| file.into()).collect();
        // Instead of vms.yaml.
        let other = generated.contains(&"vms.yaml".into()).then(|| "whole-cpus.yaml".into());
        let mut listed: Vec<PathBuf> = of
            .resources
            .into_iter()
            .chain(patches)
            .chain(generated)
            .chain(other)
            .filter(|path| !path.starts_with(".."))
            .collect();
        listed.push("kustomization.yaml".into());
        listed.sort();
        let files = std::fs::read_dir(&folder).expect("a folder").flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.file_name().into()).collect();
        files.sort();
        assert_eq!(listed, files, "{}", folder.display());
    }
}

#[test]
fn the_overlay_with_everything_has_every_component_and_the_one_for_units_no_daemonset() {
    let mut components: Vec<PathBuf> = kustomization(&cluster("overlays/full")).components;
    components.sort();
    let there: Vec<PathBuf> = folders(&cluster("components"))
        .into_iter()
        .filter(|path| !path.ends_with("withdraw"))
        .map(|path| Path::new("../../components").join(path.file_name().expect("a name")))
        .collect();
    assert_eq!(components, there);

    let (base, units) = (built(&cluster("base")), built(&cluster("overlays/units")));
    assert_eq!(units.len() + 1, base.len());
    assert!(!units.iter().any(|object| kind(object) == "DaemonSet"));
    assert!(units.iter().all(|object| base.contains(object)));
}

#[test]
fn an_overlay_appends_its_components_flags_and_names_the_image() {
    let full = built(&cluster("overlays/full"));
    let container = &only(&full, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    let arguments = strings(&container["args"]);
    assert_eq!(arguments.len(), folders(&cluster("components")).len(), "{arguments:?}");
    assert!(!arguments.contains(&"--withdraw"));
    let port = &container["ports"][0];
    let metrics = format!("--metrics=0.0.0.0:{}", port["containerPort"]);
    assert!(arguments.contains(&&*metrics) && container["readinessProbe"]["httpGet"]["port"] == port["name"]);
    let open = &only(&full, "NetworkPolicy")["spec"]["ingress"];
    assert_eq!(
        open,
        &json!([{"ports": [{"port": port["containerPort"], "protocol": "TCP"}]}])
    );
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        container["image"],
        format!("registry.example.com/stelia-publish:{version}")
    );
    // The base has what `make image` builds.
    let base = built(&cluster("base"));
    let image = &only(&base, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, &json!(format!("steliad.example/stelia-publish:{version}")));
}

/// The overlay that docs/cluster/publish.md shows, as one beside the shipped ones.
#[test]
fn the_overlay_of_the_page_can_be_built() {
    let page = read(&repository("docs/cluster/publish.md"));
    let blocks: Vec<&str> = page
        .split("\n```")
        .filter_map(|block| block.strip_prefix("yaml\n"))
        .collect();
    let shown = blocks
        .iter()
        .find(|block| block.contains("kind: Kustomization"))
        .expect("an overlay");
    let of: Kustomization = serde_saphyr::from_str(shown).expect("a kustomization");
    let mut objects = Vec::new();
    build_as(of, &cluster("overlays/full"), &mut objects);
    let container = &only(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    assert!(strings(&container["args"]).contains(&"--pod-events"), "{container}");
    assert_eq!(
        container["image"],
        format!("registry.example.com/stelia-publish:{}", env!("CARGO_PKG_VERSION"))
    );
}
