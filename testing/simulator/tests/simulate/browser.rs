//! The map's picture and the ledger's report, as a browser shows them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::map::host;
use super::*;

/// Two VMs in three have CPUs of their own for all of their vCPUs; every third has not started.
fn scenario(cores: u32, vms: u32) -> String {
    let mut scenario = format!("[host]\nsockets = 2\ncores = {cores}\nthreads = 2\n");
    // The first core is the node's own.
    let each = (cores * 4 - 2) / vms;
    for vm in 0..vms {
        let (first, last) = (2 + vm * each, 1 + (vm + 1) * each);
        let vcpus = if vm % 3 == 2 { 0 } else { each };
        scenario += &format!(
            "[[pod]]\nuid = \"{vm:08x}-64a5-4f8d-8574-41363cbaf8e5\"\nname = \"team-{}/a-vm-with-a-long-name-{vm:x<200}\"\n\
             cpus = \"{first}-{last}\"\nvcpus = {vcpus}\n",
            vm % 5
        );
    }
    scenario
}

fn browser(directory: &Path, arguments: &[&str], page: &str) -> Output {
    // Root may not have the sandbox; the pages are ours.
    let headless = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
    ];
    let out = Command::new("timeout")
        .args(["120", "chromium"])
        .args(headless)
        .arg(format!("--user-data-dir={}", directory.join("profile").display()))
        .args(arguments)
        .arg(page)
        .output()
        .expect("chromium");
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{messages}");
    // Errors of the page, and what its policy forbids.
    assert!(!messages.contains("CONSOLE"), "{messages}");
    out
}

fn screenshot(directory: &Path, page: &str) -> Vec<u8> {
    let file = directory.join("screenshot.png");
    let to = format!("--screenshot={}", file.display());
    browser(directory, &["--window-size=1600,1200", &to], page);
    fs::read(file).expect("a screenshot")
}

/// Measures every text, and writes what is wrong into the page; `texts N` at the end.
const MEASURE: &str = r#"<pre id="found"></pre><script>
const found = [], slack = 0.5, svg = document.querySelector("svg"), picture = svg.getBoundingClientRect();
const meet = (a, b) => a.left + slack < b.right && b.left + slack < a.right && a.top + slack < b.bottom && b.top + slack < a.bottom;
const leaves = (a, b) => a.left < b.left - slack || a.right > b.right + slack || a.top < b.top - slack || a.bottom > b.bottom + slack;
const texts = [...svg.querySelectorAll("text")].map(text => ({ text, area: text.getBoundingClientRect() }));
texts.forEach(({ text, area }, n) => {
  if (leaves(area, picture)) found.push("leaves the picture: " + text.textContent);
  const own = text.parentNode.querySelector(":scope > rect");
  if (own && leaves(area, own.getBoundingClientRect())) found.push("leaves its box: " + text.textContent);
  for (const other of texts.slice(0, n)) {
    if (meet(area, other.area)) found.push("overlap: " + text.textContent + " and " + other.text.textContent);
  }
});
document.getElementById("found").textContent = "BEGIN" + found.join("\n") + "texts " + texts.length + "END";
</script>"#;

fn is_shown(cores: u32, vms: u32) {
    let simulation = Simulation::start(&scenario(cores, vms));
    let (directory, host) = (tempfile::tempdir().expect("directory"), host(2, cores * 2));
    let (directory, root) = (directory.path(), host.path().to_str().expect("path"));
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).expect("page");
        format!("file://{}", path.display())
    };
    let svg = simulation.ctl(&["--root", root, "map", "--svg"]);
    let drawn = write("map.svg", &svg);

    // A page without anything is a few kilobytes as PNG.
    let blank = screenshot(directory, &write("blank.html", "<!DOCTYPE html>")).len();
    let seen = screenshot(directory, &drawn).len();
    assert!(seen > 4 * blank, "{seen} bytes, blank {blank}");

    let measured = write(
        "measured.html",
        &format!("<!DOCTYPE html><meta charset=\"utf-8\">{svg}{MEASURE}"),
    );
    let dom = browser(directory, &["--dump-dom"], &measured).stdout;
    let dom = String::from_utf8_lossy(&dom);
    let (_, found) = dom.split_once("\">BEGIN").expect("measured");
    let (found, _) = found.split_once("END</pre>").expect("measured");
    let texts = svg.matches("<text").count();
    assert!(texts as u32 > cores * 4 && found == format!("texts {texts}"), "{found}");
}

#[test]
fn a_small_node_is_shown_without_overlaps() {
    is_shown(4, 3);
}

#[test]
fn a_node_of_512_cpus_with_100_vms_is_shown_without_overlaps() {
    is_shown(128, 100);
}

/// Whether each text of the table of days lies in its cell, no cell meets another, and nothing is wider than the window; `days N` at the end.
const DAYS: &str = r#"<pre id="found"></pre><script>
const found = [], slack = 0.5, days = [...document.querySelectorAll("table")[1].querySelectorAll("tbody tr")];
const meet = (a, b) => a.left + slack < b.right && b.left + slack < a.right && a.top + slack < b.bottom && b.top + slack < a.bottom;
const leaves = (a, b) => a.left < b.left - slack || a.right > b.right + slack || a.top < b.top - slack || a.bottom > b.bottom + slack;
const cells = days.flatMap(day => [...day.querySelectorAll("td")]);
const areas = cells.map(cell => cell.getBoundingClientRect());
cells.forEach((cell, n) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  if (cell.textContent && leaves(text.getBoundingClientRect(), areas[n])) found.push("leaves its cell: " + cell.textContent);
  if (areas.slice(0, n).some(area => meet(area, areas[n]))) found.push("cells meet: " + cell.textContent);
});
if (document.documentElement.scrollWidth > window.innerWidth) found.push("wider than the window");
document.getElementById("found").textContent = "BEGIN" + found.join("\n") + "days " + days.length + "END";
</script>"#;

#[test]
fn a_report_of_the_ledger_is_shown_and_printed() {
    let account = include_str!("../../../../crates/steliactl/tests/data/october.json");
    let verdict = include_str!("../../../../crates/steliactl/tests/data/verdict.json");
    let page = steliactl::ledger::page_of(
        serde_json::from_str(account).expect("an account"),
        &serde_json::from_str(verdict).expect("a verdict"),
        "q1w2e3r4",
        "node-7",
        1_793_600_000_000_000,
    )
    .expect("a page");
    let directory = tempfile::tempdir().expect("directory");
    let directory = directory.path();
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).expect("page");
        format!("file://{}", path.display())
    };
    let address = write("report.html", &page);
    let blank = screenshot(directory, &write("blank.html", "<!DOCTYPE html>")).len();
    assert!(screenshot(directory, &address).len() > 4 * blank);

    let pdf = directory.join("report.pdf");
    let to = format!("--print-to-pdf={}", pdf.display());
    browser(directory, &["--no-pdf-header-footer", &to], &address);
    assert!(fs::read(&pdf).expect("a document").starts_with(b"%PDF-"));

    // The page's policy lets no script run, also not this one.
    let (before, policy) = page.split_once("<meta http-equiv").expect("a policy");
    let (_, after) = policy.split_once(">\n").expect("an element");
    for (width, height) in [(1600, 1200), (480, 900)] {
        let measured = write("measured.html", &format!("{before}{after}{DAYS}"));
        let size = format!("--window-size={width},{height}");
        let dom = browser(directory, &[&size, "--dump-dom"], &measured).stdout;
        let dom = String::from_utf8_lossy(&dom);
        let (_, found) = dom.split_once("\">BEGIN").expect("measured");
        let (found, _) = found.split_once("END</pre>").expect("measured");
        assert_eq!(found, "days 31", "at {width}");
    }
}
