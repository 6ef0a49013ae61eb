//! A fake Cloud Hypervisor and a fake Firecracker: a process with their threads' names, and their API on the socket that the
//! arguments name, answered as micro_http answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// How it behaves is in STELIA_TEST_QEMU, by words:
///
/// | word | |
/// |---|---|
/// | `firecracker`, `cloud-hypervisor` | what it is |
/// | `unbooted` | it boots when there is a file `boot` |
/// | `unpausable` | it refuses to pause |
/// | `half` | the first pause is carried out, its answer is cut off |
/// | `restored` | it is paused from the start |
/// | `deaf` | the guest and the command to quit are without effect |
/// | `max=4` | Cloud Hypervisor: it can have 4 vCPUs |
/// | `static` | it accepts another number of vCPUs and starts no thread, as with TDX |
/// | `keeps-vcpus` | the guest gives up no vCPUs |
///
/// Every request but a GET is appended to the file `commands`, every one to `asked`. A file `reboot` makes new vCPU threads; a
/// file `shutdown` shuts the guest down: its threads end and the VMM stays, until there is a file `boot`. Exit codes: 7 powered
/// down, 3 quit. Never returns.
pub fn vmm(dir: &Path) {
    let how = std::env::var("STELIA_TEST_QEMU").unwrap();
    let has = |word: &str| how.split_whitespace().any(|one| one == word);
    let firecracker = has("firecracker");
    let name = |index: u32| {
        if firecracker {
            format!("fc_vcpu {index}")
        } else {
            format!("vcpu{index}")
        }
    };
    let spawn = |index: u32| {
        let stop = ["reboot", "shutdown", &format!("eject{index}")].map(|file| dir.join(file));
        let body = move || {
            while !stop.iter().any(|file| file.exists()) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        std::thread::Builder::new().name(name(index)).spawn(body).unwrap()
    };
    let word = |name: &str| {
        how.split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.parse::<u32>().ok())
    };
    let (mut boot, max) = (2u32, word("max=").unwrap_or(2));
    let mut is_leaving = false;
    let mut state = match (has("restored"), has("unbooted")) {
        (true, _) => "Paused",
        (_, true) => "",
        _ => "Running",
    };
    let mut vcpus: Vec<std::thread::JoinHandle<()>> = Vec::new();
    let mut half = has("half");
    let listener = UnixListener::bind(dir.join("api")).unwrap();
    let mut commands = std::fs::File::create(dir.join("commands")).unwrap();
    let mut asked = std::fs::File::create(dir.join("asked")).unwrap();
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        if dir.join("shutdown").exists() {
            vcpus.drain(..).for_each(|thread| thread.join().unwrap());
            state = "Created";
        }
        let is_down = state.is_empty() || state == "Created";
        if is_down && dir.join("boot").exists() {
            state = "Running";
            let _ = std::fs::remove_file(dir.join("shutdown"));
        }
        if dir.join("reboot").exists() {
            vcpus.drain(..).for_each(|thread| thread.join().unwrap());
            std::fs::remove_file(dir.join("reboot")).unwrap();
        }
        if vcpus.is_empty() && !state.is_empty() && state != "Created" {
            vcpus.extend((0..boot).map(&spawn));
        }
        let Some((request, body)) = read(&stream) else { continue };
        writeln!(asked, "{request}").unwrap();
        if !request.starts_with("GET") {
            writeln!(commands, "{}", format!("{request} {body}").trim()).unwrap();
        }
        let refused = |stream: &mut UnixStream| {
            let text = if firecracker {
                r#"{"fault_message":"The operation is not supported now."}"#
            } else {
                r#"["Error from API","The VM is in another state"]"#
            };
            answer(stream, if firecracker { "400" } else { "500" }, text);
        };
        match (request.as_str(), body.as_str()) {
            ("PUT /api/v1/vm.pause", "") | ("PATCH /vm", r#"{"state":"Paused"}"#) => {
                // Firecracker pauses what is paused.
                let again = firecracker && state == "Paused";
                if (state != "Running" && !again) || has("unpausable") {
                    refused(&mut stream);
                    continue;
                }
                state = "Paused";
                if std::mem::take(&mut half) {
                    stream.write_all(b"HTTP/1.1 204 No Con").unwrap();
                    continue;
                }
                answer(&mut stream, "204", "");
            }
            ("PUT /api/v1/vm.resume", "") | ("PATCH /vm", r#"{"state":"Resumed"}"#) => {
                if state != "Paused" {
                    refused(&mut stream);
                    continue;
                }
                state = "Running";
                answer(&mut stream, "204", "");
            }
            ("GET /api/v1/vm.info", "") if state.is_empty() => answer(&mut stream, "404", r#"["Error from API"]"#),
            ("GET /api/v1/vm.info", "") => {
                let topology = r#"{"threads_per_core":1,"cores_per_die":2,"dies_per_package":1,"packages":1}"#;
                let cpus =
                    format!(r#"{{"boot_vcpus":{boot},"max_vcpus":{max},"topology":{topology},"kvm_hyperv":false}}"#);
                let info =
                    format!(r#"{{"config":{{"cpus":{cpus},"disks":null}},"state":"{state}","memory_actual_size":1}}"#);
                answer(&mut stream, "200", &info);
            }
            ("PUT /api/v1/vm.resize", body) => {
                let body: serde_json::Value = serde_json::from_str(body).unwrap();
                let desired = u32::try_from(body["desired_vcpus"].as_u64().unwrap()).unwrap();
                if is_leaving {
                    answer(&mut stream, "429", r#"["Error from API","vCPUs are pending removal"]"#);
                    continue;
                }
                if desired > max || desired == 0 {
                    refused(&mut stream);
                    continue;
                }
                // The configuration has the number at once.
                boot = desired;
                let now = u32::try_from(vcpus.len()).unwrap();
                if !has("static") {
                    vcpus.extend((now..desired).map(&spawn));
                    is_leaving = desired < now && has("keeps-vcpus");
                    let left = if is_leaving { now } else { desired };
                    (left..now).for_each(|index| std::fs::write(dir.join(format!("eject{index}")), "").unwrap());
                    vcpus
                        .drain(usize::try_from(left).unwrap()..)
                        .for_each(|thread| thread.join().unwrap());
                    (left..now).for_each(|index| std::fs::remove_file(dir.join(format!("eject{index}"))).unwrap());
                }
                answer(&mut stream, "204", "");
            }
            ("GET /", "") => {
                let state = if state.is_empty() { "Not started" } else { state };
                let text = format!(
                    r#"{{"id":"anonymous","state":"{state}","vmm_version":"1.13.1","app_name":"Firecracker"}}"#
                );
                answer(&mut stream, "200", &text);
            }
            ("GET /machine-config", "") => answer(
                &mut stream,
                "200",
                r#"{"vcpu_count":2,"mem_size_mib":128,"smt":false,"track_dirty_pages":false}"#,
            ),
            ("PUT /api/v1/vm.power-button", "") | ("PUT /actions", r#"{"action_type":"SendCtrlAltDel"}"#) => {
                answer(&mut stream, "204", "");
                if !has("deaf") {
                    std::process::exit(7);
                }
            }
            ("PUT /api/v1/vmm.shutdown", "") => {
                answer(&mut stream, "204", "");
                if !has("deaf") {
                    std::process::exit(3);
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// `METHOD PATH` and the body.
fn read(stream: &UnixStream) -> Option<(String, String)> {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request).ok()?;
    let mut length = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok()?;
        if field.trim().is_empty() {
            break;
        }
        if let Some(text) = field.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let request = request.trim().strip_suffix(" HTTP/1.1")?.to_owned();
    Some((request, String::from_utf8(body).unwrap()))
}

fn answer(stream: &mut UnixStream, status: &str, body: &str) {
    let mut text = format!("HTTP/1.1 {status} \r\nServer: API\r\nConnection: keep-alive\r\n");
    if !body.is_empty() {
        text += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    // The client may have left.
    let _ = stream.write_all(format!("{text}\r\n{body}").as_bytes());
}
