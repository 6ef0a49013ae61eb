//! What a real kubectl builds of the folders is what the tests of this crate build of them, names included.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::kustomization::{HASH, built, generated};
use crate::{cluster, documents, folders, kind, name, read, repository, strings};

/// The program, which the script installs where it is missing.
fn kubectl() -> PathBuf {
    let script = repository("packaging/tools/kubectl");
    let found = Command::new(&script).output().expect("run packaging/tools/kubectl");
    let said = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "packaging/tools/kubectl: {said}");
    String::from_utf8(found.stdout).expect("a path").trim().into()
}

/// What `kubectl kustomize` prints for a folder.
fn by_kubectl(program: &Path, folder: &Path) -> Vec<Value> {
    let printed = Command::new(program).arg("kustomize").arg(folder).output();
    let printed = printed.unwrap_or_else(|cause| panic!("run {}: {cause}", program.display()));
    let said = String::from_utf8_lossy(&printed.stderr);
    assert!(
        printed.status.success() && said.is_empty(),
        "{}: {said}",
        folder.display()
    );
    let text = String::from_utf8(printed.stdout).expect("UTF-8");
    serde_saphyr::from_multiple(&text).unwrap_or_else(|cause| panic!("{}: {cause}", folder.display()))
}

/// By kind, namespace and name; a hash that kubectl added to a generated name, by [`HASH`].
fn by_name(objects: Vec<Value>, names: &BTreeSet<String>) -> BTreeMap<String, Value> {
    let hashes: Vec<String> = objects
        .iter()
        .filter(|object| kind(object) == "ConfigMap")
        .filter_map(|object| {
            let (of, hash) = name(object).rsplit_once('-')?;
            (names.contains(of) && hash.len() == HASH.len()).then(|| name(object).to_owned())
        })
        .collect();
    let key = |object: &Value| {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        format!("{} {namespace}/{}", kind(object), name(object))
    };
    let objects = objects.into_iter().map(|object| {
        // kubectl writes a folded text anew, with a line feed more before a line that is indented further. In the policies' expressions these are spaces.
        let mut text = object.to_string();
        while text.contains("\\n\\n") {
            text = text.replace("\\n\\n", "\\n");
        }
        for hash in &hashes {
            let (of, _) = hash.rsplit_once('-').expect("a hash");
            text = text.replace(&format!("\"{hash}\""), &format!("\"{of}-{HASH}\""));
        }
        let object: Value = serde_json::from_str(&text).expect("JSON");
        (key(&object), object)
    });
    objects.collect()
}

fn the_same(program: &Path, folder: &Path) {
    let mut names = BTreeSet::new();
    generated(folder, &mut names);
    let ours = by_name(built(folder), &names);
    let theirs = by_name(by_kubectl(program, folder), &names);
    let keys = |of: &BTreeMap<String, Value>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&ours), keys(&theirs), "{}", folder.display());
    for (key, object) in &ours {
        assert_eq!(object, &theirs[key], "{}: {key}", folder.display());
    }
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

fn with(folder: &Path, kustomization: &str) {
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join("kustomization.yaml"), kustomization).expect("a file");
}

#[test]
fn kubectl_builds_of_every_folder_what_the_tests_build() {
    let program = kubectl();
    let temporary = tempfile::tempdir().expect("a folder");
    let copy = temporary.path().join("cluster");
    copied(&cluster(""), &copy);
    let mut every: Vec<PathBuf> = folders(&copy.join("overlays"));
    every.extend(folders(&copy.join("placement")));
    every.push(copy.join("base"));
    // Each component alone, and all that go together.
    let components: Vec<String> = folders(&copy.join("components"))
        .iter()
        .map(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .expect("a name")
                .to_owned()
        })
        .collect();
    for component in &components {
        let folder = copy.join("overlays").join(format!("with-{component}"));
        let text = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- ../../base\ncomponents:\n- ../../components/{component}\n"
        );
        with(&folder, &text);
        every.push(folder);
    }
    // What the page shows.
    for (at, page) in ["docs/cluster/publish.md", "docs/cluster/placement.md"]
        .into_iter()
        .enumerate()
    {
        let text = read(&repository(page));
        let blocks = text.split("\n```").filter_map(|block| block.strip_prefix("yaml\n"));
        let shown: Vec<&str> = blocks.filter(|block| block.contains("kind: Kustomization")).collect();
        assert!(!shown.is_empty(), "{page}");
        for (number, block) in shown.into_iter().enumerate() {
            let folder = copy.join("overlays").join(format!("page-{at}-{number}"));
            with(&folder, block);
            every.push(folder);
        }
    }
    for folder in every {
        the_same(&program, &folder);
    }
}

/// The rule itself, where a name of another kind is a generated one's: kubectl rewrites what a role names, and so do the tests.
#[test]
fn a_role_that_names_what_a_generated_object_is_called_is_rewritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let objects = json!([
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "lease", "namespace": "there"},
         "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["settings", "other"], "verbs": ["get"]}]},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "there"}, "spec": {"template": {"spec": {
            "containers": [{"name": "c", "image": "i:1",
                "envFrom": [{"configMapRef": {"name": "settings"}}],
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "k"}}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "settings"}},
                {"name": "w", "projected": {"sources": [{"configMap": {"name": "settings"}}]}}]}}}},
    ]);
    let lines: Vec<String> = objects
        .as_array()
        .expect("a list")
        .iter()
        .map(Value::to_string)
        .collect();
    fs::write(folder.path().join("objects.yaml"), lines.join("\n---\n")).expect("a file");
    fs::write(folder.path().join("k"), "text").expect("a file");
    let generator = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [objects.yaml]\n\
                     configMapGenerator:\n- {name: settings, namespace: there, files: [k=k]}\n";
    with(folder.path(), generator);
    the_same(&kubectl(), folder.path());
    let rewritten = built(folder.path());
    let role = rewritten.iter().find(|object| kind(object) == "Role").expect("it");
    assert_eq!(
        strings(&role["rules"][0]["resourceNames"]),
        [&*format!("settings-{HASH}"), "other"]
    );
}

/// Without kubectl: nothing that a role names is called as something generated is, in any folder.
#[test]
fn no_generated_name_is_one_that_a_role_names() {
    let (mut names, mut named) = (BTreeSet::new(), BTreeSet::new());
    look(&cluster(""), &mut names, &mut named);
    assert!(!names.is_empty() && named.len() >= 2, "{names:?} {named:?}");
    assert!(names.is_disjoint(&named), "{names:?} {named:?}");
}

fn look(folder: &Path, names: &mut BTreeSet<String>, named: &mut BTreeSet<String>) {
    if folder.join("kustomization.yaml").is_file() {
        generated(folder, names);
    }
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            look(&path, names, named);
            continue;
        }
        let roles = documents(&path).into_iter();
        for role in
            roles.filter(|object| ["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap_or_default()))
        {
            let rules = role["rules"].as_array().expect("rules").iter();
            named.extend(rules.flat_map(|rule| strings(&rule["resourceNames"]).into_iter().map(str::to_owned)));
        }
    }
}
