//! What kubectl builds of the folders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};

use crate::{cluster, documents, folders, kind, objects, one, only, pods, read, repository, strings};

/// The program, which the script installs where it is missing.
fn kubectl() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let script = repository("packaging/tools/kubectl");
        let found = Command::new(&script).output().expect("run packaging/tools/kubectl");
        let said = String::from_utf8_lossy(&found.stderr);
        assert!(found.status.success(), "packaging/tools/kubectl: {said}");
        String::from_utf8(found.stdout).expect("a path").trim().into()
    })
}

/// What `kubectl kustomize` prints for a folder.
pub fn built(folder: &Path) -> Vec<Value> {
    static BUILT: Mutex<BTreeMap<PathBuf, Vec<Value>>> = Mutex::new(BTreeMap::new());
    let mut all = BUILT.lock().expect("no test panics here");
    let built = all.entry(folder.to_owned()).or_insert_with(|| by_kubectl(folder));
    built.clone()
}

fn by_kubectl(folder: &Path) -> Vec<Value> {
    let printed = Command::new(kubectl()).arg("kustomize").arg(folder).output();
    let printed = printed.expect("run kubectl");
    let said = String::from_utf8_lossy(&printed.stderr);
    assert!(
        printed.status.success() && said.is_empty(),
        "{}: {said}",
        folder.display()
    );
    let text = String::from_utf8(printed.stdout).expect("UTF-8");
    serde_saphyr::from_multiple(&text).unwrap_or_else(|cause| panic!("{}: {cause}", folder.display()))
}

fn kustomization(folder: &Path) -> Value {
    documents(&folder.join("kustomization.yaml")).remove(0)
}

/// A copy of all folders, to add others to it.
fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copied(&path, &copy);
        } else {
            fs::copy(&path, &copy).expect("a copy");
        }
    }
}

#[test]
fn every_file_of_a_folder_is_in_its_kustomization() {
    let of = |of: &str| folders(&cluster(of));
    let every = [vec![cluster("base")], of("components"), of("overlays"), of("placement")].concat();
    for folder in every {
        let of = kustomization(&folder);
        let resources = strings(&of["resources"]).into_iter();
        let list = |key: &str| of[key].as_array().into_iter().flatten();
        let patches = list("patches").filter_map(|patch| patch["path"].as_str());
        let generated = list("configMapGenerator").flat_map(|one| strings(&one["files"]));
        let generated = generated.filter_map(|file| Some(file.split_once('=')?.1));
        let listed = resources.chain(patches).chain(generated);
        let listed = listed.filter(|path| !path.starts_with(".."));
        let mut listed: BTreeSet<String> = listed.map(str::to_owned).collect();
        // Instead of vms.yaml.
        if listed.contains("vms.yaml") {
            listed.insert("whole-cpus.yaml".to_owned());
        }
        listed.insert("kustomization.yaml".to_owned());
        let files = fs::read_dir(&folder).expect("a folder").flatten();
        let files: BTreeSet<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
        assert_eq!(listed, files, "{}", folder.display());
    }
}

#[test]
fn the_overlay_with_everything_has_every_component_and_the_one_for_units_no_daemonset() {
    let full = kustomization(&cluster("overlays/full"));
    let components: BTreeSet<PathBuf> = strings(&full["components"]).into_iter().map(PathBuf::from).collect();
    let there = folders(&cluster("components")).into_iter();
    // The one takes everything back, the other asks for a user on each node.
    let there = there.filter(|path| !path.ends_with("withdraw") && !path.ends_with("rebind"));
    let there = there.map(|path| Path::new("../../components").join(path.file_name().expect("a name")));
    assert_eq!(components, there.collect());

    let (base, units) = (built(&cluster("base")), built(&cluster("overlays/units")));
    assert_eq!(units.len() + 1, base.len());
    assert!(!units.iter().any(|object| kind(object) == "DaemonSet"));
    assert!(units.iter().all(|object| base.contains(object)));
}

#[test]
fn an_overlay_appends_its_components_flags_and_names_the_image() {
    let full = built(&cluster("overlays/full"));
    let (_, container) = pods(only(&full, "DaemonSet"));
    let arguments = strings(&container["args"]);
    assert_eq!(arguments.len(), 6, "{arguments:?}");
    assert!(!arguments.contains(&"--withdraw"));
    let port = &container["ports"][0];
    let metrics = format!("--metrics=0.0.0.0:{}", port["containerPort"]);
    assert!(arguments.contains(&&*metrics) && container["readinessProbe"]["httpGet"]["port"] == port["name"]);
    let open = &only(&full, "NetworkPolicy")["spec"]["ingress"];
    let only_that = json!([{"ports": [{"port": port["containerPort"], "protocol": "TCP"}]}]);
    assert_eq!(open, &only_that);
}

/// Of the registry that an overlay names once; the base has what `make image` builds.
#[test]
fn every_image_of_ours_is_of_the_registry_of_its_overlay() {
    let version = env!("CARGO_PKG_VERSION");
    for (folder, kind, program, registry) in [
        ("overlays/full", "DaemonSet", "stelia-publish", "registry.example.com"),
        ("base", "DaemonSet", "stelia-publish", "steliad.example"),
        (
            "overlays/placement",
            "Deployment",
            "stelia-placement",
            "registry.example.com",
        ),
        ("placement/base", "Deployment", "stelia-placement", "steliad.example"),
    ] {
        let objects = built(&cluster(folder));
        let (_, container) = pods(one(&objects, kind, program));
        assert_eq!(
            container["image"],
            format!("{registry}/{program}:{version}"),
            "{folder}"
        );
    }
}

/// Each component alone, and the overlays that the pages show, as ones beside the shipped ones.
#[test]
fn components_alone_and_the_overlays_of_the_pages_can_be_built() {
    let temporary = tempfile::tempdir().expect("a folder");
    copied(&cluster(""), temporary.path());
    let folder = temporary.path().join("overlays/new");
    let build = |kustomization: &str| {
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("kustomization.yaml"), kustomization).expect("a file");
        by_kubectl(&folder)
    };
    for component in folders(&cluster("components")) {
        let name = component.file_name().expect("a name").to_string_lossy().into_owned();
        let components = format!("resources: [../../base]\ncomponents: [../../components/{name}]");
        let kind = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization";
        let objects = build(&format!("{kind}\n{components}\n"));
        let (_, container) = pods(only(&objects, "DaemonSet"));
        assert_eq!(strings(&container["args"]).len(), 2, "{name}");
    }
    for program in ["publish", "placement"] {
        let page = format!("docs/cluster/{program}.md");
        let text = read(&repository(&page));
        let blocks = text.split("\n```").filter_map(|block| block.strip_prefix("yaml\n"));
        let shown: Vec<&str> = blocks.filter(|block| block.contains("kind: Kustomization")).collect();
        assert!(!shown.is_empty(), "{page}");
        for block in shown {
            let objects = build(block);
            let image = format!("registry.example.com/stelia-{program}");
            assert!(
                objects.iter().any(|object| object.to_string().contains(&image)),
                "{page}: {block}"
            );
        }
    }
}

#[test]
fn the_component_for_rebinds_gives_the_pods_the_bus_and_a_user_of_their_own() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rebind");
    fs::create_dir_all(&folder).expect("a folder");
    // kustomize takes no absolute paths.
    let up = "../".repeat(folder.components().count() - 1);
    let path = |part: &str| format!("{up}{}", cluster(part).display());
    let overlay = json!({"resources": [path("base")], "components": [path("components/rebind")]});
    fs::write(folder.join("kustomization.yaml"), overlay.to_string()).expect("a file");
    let objects = built(&folder);
    let (spec, container) = pods(only(&objects, "DaemonSet"));
    assert!(strings(&container["args"]).contains(&"--rebind"));
    assert_eq!(spec["securityContext"]["runAsUser"], 60998);
    assert_eq!(
        container["volumeMounts"][2],
        json!({"name": "bus", "mountPath": "/var/run/dbus", "readOnly": true})
    );
    assert_eq!(spec["volumes"][2]["hostPath"]["path"], "/run/dbus");
    let definition = only(&objects, "CustomResourceDefinition");
    objects::check(definition).expect("a definition");
}
