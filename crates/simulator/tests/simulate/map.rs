//! README's picture of a node, drawn from a simulated one, which the test compares with the file.

use std::fs;
use std::path::Path;

use crate::Simulation;

#[test]
fn the_picture_in_the_documentation_is_the_one_that_steliactl_draws() {
    let simulation = Simulation::start(include_str!("map.toml"));
    let directory = tempfile::tempdir().expect("directory");
    let drawn = directory.path().join("map.svg");
    simulation.ctl(&["map", "--svg", drawn.to_str().expect("path")]);
    let drawn = fs::read_to_string(drawn).expect("a picture");
    assert!(
        drawn.starts_with("<svg") && drawn.matches("<rect").count() >= 32,
        "{drawn:.200}"
    );
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/map.svg");
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        fs::write(&kept, &drawn).expect("docs/map.svg");
    }
    let same = fs::read_to_string(&kept).is_ok_and(|kept| kept == drawn);
    assert!(
        same,
        "docs/map.svg is not what is drawn: STELIA_WRITE_DOCS=1 cargo test --test simulate map"
    );
}
