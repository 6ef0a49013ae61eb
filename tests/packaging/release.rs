//! A release's files in `target/dist`: each SBOM names what was compiled for the programs and nothing else, the checksums are right.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{PACKAGES, architecture, deb, given, run, target, text};

const IMAGES: [&str; 3] = ["stelia-runner", "stelia-publish", "stelia-placement"];

/// Each package's programs.
pub fn programs(package: &str) -> &'static [(&'static str, &'static str)] {
    match package {
        "steliad" => &[
            ("steliad", "usr/libexec/stelia/steliad"),
            ("steliad-quiet", "usr/libexec/stelia/steliad-quiet"),
            ("steliactl", "usr/bin/steliactl"),
            ("stelia-device-plugin", "usr/libexec/stelia/stelia-device-plugin"),
            ("stelia-runner", "usr/bin/stelia-runner"),
        ],
        "stelia-publish" => &[("stelia-publish", "usr/libexec/stelia/stelia-publish")],
        "stelia-placement" => &[("stelia-placement", "usr/libexec/stelia/stelia-placement")],
        _ => &[("stelia-cluster", "usr/bin/stelia-cluster")],
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// A file that has the version and the architecture in its name.
fn released(name: &str, ending: &str) -> PathBuf {
    let (version, architecture) = (env!("CARGO_PKG_VERSION"), architecture().1);
    given("STELIA_DIST").join(format!("{name}-{version}-{architecture}{ending}"))
}

fn sums() -> String {
    format!("SHA256SUMS-{}", architecture().1)
}

fn sbom(package: &str) -> Value {
    let file = fs::read(released(package, ".cdx.json")).expect("an SBOM");
    serde_json::from_slice(&file).expect("JSON")
}

fn components(sbom: &Value) -> &[Value] {
    sbom["components"].as_array().expect("components")
}

fn string<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_else(|| panic!("no {key}: {of}"))
}

/// name@version of every crate that it lists; what is no crate has no version in its reference.
fn crates(sbom: &Value) -> BTreeSet<String> {
    let references = components(sbom).iter().map(|one| string(one, "bom-ref").to_owned());
    references.filter(|reference| reference.contains('@')).collect()
}

/// Every crate that cargo reports to have compiled for the programs' own target. What runs while they are built is compiled for the
/// host, into another folder.
fn compiled(log: &str) -> BTreeSet<String> {
    let target = target();
    let log = fs::read_to_string(given(log)).expect("cargo's messages");
    let messages = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let artifacts = messages.filter(|message| message["reason"] == "compiler-artifact");
    let theirs = artifacts.filter(|message| {
        let files = message["filenames"].as_array().expect("files").iter();
        files
            .filter_map(Value::as_str)
            .any(|file| Path::new(file).iter().any(|part| part == &*target))
    });
    // "…#name@1.2.3", or "path+file:///…/name#1.2.3"
    let reference = |message: Value| {
        let (place, id) = string(&message, "package_id").rsplit_once('#').expect("an id");
        match (id.contains('@'), place.rsplit_once('/')) {
            (false, Some((_, folder))) => format!("{folder}@{id}"),
            _ => id.to_owned(),
        }
    };
    theirs.map(reference).collect()
}

#[test]
fn the_sboms_list_what_was_compiled_for_the_programs_and_nothing_else() {
    let node = compiled("STELIA_BUILT");
    assert!(node.len() >= 100, "{node:?}");
    assert_eq!(crates(&sbom("steliad")), node);
    // One build, three packages.
    let cluster = compiled("STELIA_CLUSTER_BUILT");
    assert!(cluster.len() >= 100, "{cluster:?}");
    let of_cluster = PACKAGES.into_iter().filter(|package| *package != "steliad");
    let listed: BTreeSet<String> = of_cluster.flat_map(|package| crates(&sbom(package))).collect();
    assert_eq!(listed, cluster);
}

#[test]
fn nothing_of_the_cluster_is_in_the_nodes_package() {
    let (node, publish) = (crates(&sbom("steliad")), crates(&sbom("stelia-publish")));
    let has = |of: &BTreeSet<String>, name: &str| of.iter().any(|one| one.split('@').next() == Some(name));
    for name in ["kube-client", "k8s-openapi", "rustls", "ring"] {
        assert!(has(&publish, name) && !has(&node, name), "{name}");
    }
}

#[test]
fn the_sbom_lists_what_cargo_tree_has_of_each_program() {
    let target = target();
    for (package, program) in PACKAGES
        .into_iter()
        .flat_map(|package| programs(package).iter().map(move |(program, _)| (package, *program)))
    {
        let listed = crates(&sbom(package));
        let options = [
            "--edges",
            "normal,no-proc-macro",
            "--prefix",
            "none",
            "--target",
            &target,
        ];
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--quiet", "--locked", "--offline", "--package", program])
            .args(options)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo tree");
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let tree = String::from_utf8(tree.stdout).expect("text");
        let package = |line: &str| {
            let (name, rest) = line.split_once(" v").expect("name and version");
            format!("{name}@{}", rest.split(' ').next().unwrap_or_default())
        };
        let tree: BTreeSet<String> = tree.lines().map(package).collect();
        let missing: Vec<&String> = tree.difference(&listed).collect();
        assert!(tree.len() >= 50 && missing.is_empty(), "{program}: {missing:?}");
    }
}

#[test]
fn every_component_of_the_sboms_can_be_identified_and_belongs_to_a_program() {
    PACKAGES.into_iter().for_each(every_component);
}

fn every_component(package: &str) {
    let sbom = sbom(package);
    let mut ours = BTreeSet::new();
    for component in components(&sbom) {
        let reference = string(component, "bom-ref");
        assert!(!string(component, "version").is_empty());
        let licence = component["licenses"][0]["expression"].as_str().unwrap_or_default();
        assert!(!licence.is_empty(), "{reference} has no licence");
        match component["purl"].as_str() {
            Some(purl) => assert!(
                purl.starts_with("pkg:cargo/") == (component["hashes"][0]["alg"] == "SHA-256"),
                "{purl}"
            ),
            None => assert!(ours.insert(string(component, "name").to_owned())),
        }
    }
    // Crates of this repository, which no registry has.
    let here = |name: &String| name.starts_with("steli") || name == "kubelet-planner";
    assert!(ours.len() >= 2 && ours.iter().all(here), "{ours:?}");
    // Along the arrows from the release everything is reached.
    let arrows = sbom["dependencies"].as_array().expect("dependencies");
    let uses = |from: &str| -> Vec<&str> {
        let arrow = arrows.iter().find(|arrow| arrow["ref"] == from);
        let to = arrow.unwrap_or_else(|| panic!("{from}"))["dependsOn"]
            .as_array()
            .expect("a list");
        to.iter().filter_map(Value::as_str).collect()
    };
    let (mut reached, mut open) = (BTreeSet::new(), uses("release"));
    assert_eq!(open.len(), programs(package).len());
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(uses(next));
        }
    }
    let all: BTreeSet<&str> = components(&sbom).iter().map(|one| string(one, "bom-ref")).collect();
    assert_eq!(reached, all);
    assert!(
        all.contains("rust-std") && all.contains("glibc"),
        "they are linked statically"
    );
    // Nothing of the machine that built it.
    assert!(!sbom.to_string().contains(env!("CARGO_MANIFEST_DIR")));
}

#[test]
fn the_programs_of_the_packages_are_those_of_the_sboms() {
    for package in PACKAGES {
        let (sbom, unpacked) = (sbom(package), tempfile::tempdir().expect("root"));
        run(&["dpkg-deb", "-x", text(&deb(package)), text(unpacked.path())]);
        for (program, path) in programs(package) {
            let sum = run(&["sha256sum", text(&unpacked.path().join(path))]);
            let listed = components(&sbom)
                .iter()
                .find(|one| one["name"] == *program)
                .expect("it");
            assert_eq!(listed["type"], "application");
            let listed = listed["hashes"][0]["content"].as_str();
            assert_eq!(sum.split_whitespace().next(), listed, "{program}");
            let machine = machine(&fs::read(unpacked.path().join(path)).expect("a program"));
            assert_eq!(machine, architecture().1, "{program}");
        }
    }
}

/// What an ELF file says of its machine: two bytes at 18 (elf(5)).
fn machine(program: &[u8]) -> &'static str {
    match program {
        [0x7f, b'E', b'L', b'F', ..] if program[18..20] == [62, 0] => "amd64",
        [0x7f, b'E', b'L', b'F', ..] if program[18..20] == [183, 0] => "arm64",
        _ => panic!("not a program of a known machine: {:?}", &program[..20]),
    }
}

#[test]
fn a_hard_link_has_a_checksum_and_a_symbolic_one_has_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, deb) = (folder.path().join("tree"), folder.path().join("one.deb"));
    fs::create_dir_all(tree.join("DEBIAN")).expect("a folder");
    let control = "Package: one\nVersion: 1\nArchitecture: all\nMaintainer: one <one@example.org>\nDescription: one\n";
    fs::write(tree.join("DEBIAN/control"), control).expect("write");
    fs::write(tree.join("file"), "one\n").expect("write");
    fs::hard_link(tree.join("file"), tree.join("hard")).expect("a hard link");
    std::os::unix::fs::symlink("file", tree.join("symbolic")).expect("a symbolic link");
    run(&[
        "dpkg-deb",
        "-Zxz",
        "--root-owner-group",
        "--build",
        text(&tree),
        text(&deb),
    ]);
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/tools/md5sums");
    run(&["env", "SOURCE_DATE_EPOCH=1", text(&tool), text(&deb)]);
    let sums = run(&["dpkg-deb", "--info", text(&deb), "md5sums"]);
    let listed: Vec<(&str, &str)> = sums.lines().filter_map(|line| line.split_once("  ")).collect();
    let names: Vec<&str> = listed.iter().map(|(_, name)| *name).collect();
    assert_eq!(names, ["file", "hard"]);
    assert_eq!(listed[0].0, listed[1].0);
}

#[test]
fn every_package_has_the_checksums_of_its_files_but_its_configuration() {
    for package in PACKAGES {
        let (deb, unpacked) = (deb(package), tempfile::tempdir().expect("root"));
        run(&["dpkg-deb", "-x", text(&deb), text(unpacked.path())]);
        let sums = run(&["dpkg-deb", "--info", text(&deb), "md5sums"]);
        let file = unpacked.path().join("md5sums");
        fs::write(&file, &sums).expect("write");
        let check = Command::new("md5sum")
            .args(["--check", "--strict", "--quiet", "md5sums"])
            .current_dir(unpacked.path())
            .output();
        let check = check.expect("md5sum");
        assert!(check.status.success(), "{package}: {check:?}");
        let listed: BTreeSet<&str> = sums.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
        let files = run(&["find", text(unpacked.path()), "-type", "f", "-printf", "%P\n"]);
        let missing: Vec<&str> = files.lines().filter(|name| !listed.contains(name)).collect();
        let expected = |name: &&str| *name == "md5sums" || name.starts_with("etc/");
        assert!(missing.iter().all(expected), "{package}: {missing:?}");
        assert!(
            listed.iter().all(|name| !name.starts_with("etc/")),
            "{package}: {listed:?}"
        );
    }
}

/// A JSON document of an OCI archive.
fn member(archive: &Path, name: &str) -> Value {
    serde_json::from_str(&run(&["tar", "-xOf", text(archive), name])).expect("JSON")
}

/// The document with this descriptor.
fn blob(archive: &Path, of: &Value) -> Value {
    member(archive, &format!("blobs/{}", string(of, "digest").replace(':', "/")))
}

#[test]
fn every_image_says_what_it_is_for_which_architecture_and_from_which_version() {
    for image in IMAGES {
        let archive = released(image, ".tar");
        let entry = member(&archive, "index.json")["manifests"][0].clone();
        let config = blob(&archive, &blob(&archive, &entry)["config"]);
        assert_eq!(string(&config, "architecture"), architecture().1);
        assert_eq!(string(&entry["platform"], "architecture"), architecture().1);
        let labels = &config["config"]["Labels"];
        let label = |name: &str| string(labels, &format!("org.opencontainers.image.{name}")).to_owned();
        assert_eq!(
            (label("title").as_str(), label("licenses").as_str()),
            (image, "Apache-2.0")
        );
        assert_eq!(label("version"), env!("CARGO_PKG_VERSION"));
        assert!(!label("description").is_empty(), "{labels}");
    }
}

#[test]
fn an_archive_of_two_architectures_has_the_image_of_each_under_one_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = |architecture: &str| image(folder.path(), architecture, "0.1.0", "of a commit");
    let archives = [image("amd64"), image("arm64")];
    let both = folder.path().join("both.tar");
    let merge = |archives: [&Path; 2]| {
        let archives = archives.map(text);
        let mut merge = Command::new(oci_image());
        merge
            .arg("--index")
            .args(archives)
            .arg(&both)
            .output()
            .expect("oci-image")
    };
    assert!(merge([&archives[0], &archives[1]]).status.success());
    let entry = |archive: &Path| member(archive, "index.json")["manifests"].clone();
    let whole = entry(&both);
    assert_eq!(whole.as_array().expect("a list").len(), 1, "{whole}");
    assert_eq!(whole[0]["annotations"], entry(&archives[0])[0]["annotations"]);
    let images = blob(&both, &whole[0])["manifests"].clone();
    for (place, archive) in archives.iter().enumerate() {
        let one = &entry(archive)[0];
        assert_eq!(images[place]["platform"], one["platform"]);
        assert_eq!(blob(&both, &images[place]), blob(archive, one));
        let of = |archive: &Path| blob(archive, &blob(archive, one)["config"])["architecture"].clone();
        assert_eq!(of(&both), of(archive));
    }
    assert_eq!(images.as_array().map(Vec::len), Some(2), "{images}");
    // Two of one architecture are not an image for two.
    assert!(!merge([&archives[0], &archives[0]]).status.success());
}

#[test]
fn images_of_different_sources_are_not_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let amd64 = image(folder.path(), "amd64", "0.1.0", "this commit");
    for (version, revision, label) in [
        ("0.1.0", "that commit", "revision"),
        ("0.2.0", "this commit", "version"),
    ] {
        let arm64 = image(folder.path(), "arm64", version, revision);
        let both = folder.path().join("both.tar");
        let mut merge = Command::new(oci_image());
        let merge = merge.arg("--index").args([&amd64, &arm64, &both]).output();
        let merge = merge.expect("oci-image");
        let said = String::from_utf8_lossy(&merge.stderr);
        let expected = format!("not one image: org.opencontainers.image.{label} is ");
        assert!(!merge.status.success() && said.starts_with(&expected), "{said}");
        assert!(!both.exists());
    }
}

fn oci_image() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/tools/oci-image")
}

/// The archive of an image whose program is only the head of one for this architecture.
fn image(folder: &Path, architecture: &str, version: &str, revision: &str) -> PathBuf {
    let program = folder.join(architecture).join("stelia-runner");
    fs::create_dir_all(program.parent().expect("its folder")).expect("a folder");
    let machine = if architecture == "amd64" { 62 } else { 183 };
    let head: [&[u8]; 3] = [b"\x7fELF", &[0; 14], &[machine, 0]];
    fs::write(&program, head.concat()).expect("written");
    let archive = folder.join(format!("{architecture}.tar"));
    let mut made = Command::new(oci_image());
    made.args([text(&program), version, text(&archive)])
        .env("STELIA_REVISION", revision);
    let made = made.output().expect("oci-image");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    archive
}

fn check(folder: &Path) -> bool {
    let mut check = Command::new("sha256sum");
    check
        .args(["--check", "--strict", "--quiet", &sums()])
        .current_dir(folder);
    check.output().expect("sha256sum").status.success()
}

#[test]
fn the_checksums_are_of_every_file_and_notice_a_changed_one() {
    let dist = given("STELIA_DIST");
    let lines = fs::read_to_string(dist.join(sums())).expect("checksums");
    let listed = lines.lines().filter_map(|line| line.split_once("  "));
    let mut listed: BTreeSet<String> = listed.map(|(_, name)| name.to_owned()).collect();
    assert!(listed.insert(sums()));
    assert_eq!(listed, names(&dist));
    // Releases for two architectures can be in one folder.
    let (machine, debian) = architecture();
    let of_one = |name: &String| {
        name.contains(&format!("-{debian}"))
            || name.ends_with(&format!("_{debian}.deb"))
            || name.ends_with(&format!(".{machine}.rpm"))
    };
    assert!(listed.iter().all(of_one), "{listed:?}");
    // Three images: of the runner, of the publisher and of the placement.
    for (ending, count) in [(".deb", 4), (".rpm", 4), (".tar", 3), (".cdx.json", 4)] {
        let found = listed.iter().filter(|name| name.ends_with(ending)).count();
        assert_eq!(found, count, "{ending}: {listed:?}");
    }
    assert!(check(&dist));
    let copy = tempfile::tempdir().expect("a folder");
    for name in &listed {
        fs::copy(dist.join(name), copy.path().join(name)).expect("copied");
    }
    assert!(check(copy.path()));
    let changed: PathBuf = copy
        .path()
        .join(listed.iter().find(|name| name.ends_with(".tar")).expect("it"));
    let mut bytes = fs::read(&changed).expect("bytes");
    bytes[0] ^= 1;
    fs::write(&changed, bytes).expect("written");
    assert!(!check(copy.path()));
}
