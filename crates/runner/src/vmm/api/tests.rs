use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use super::*;
use Dialect::{CloudHypervisor, Firecracker};

const NO_CONTENT: &str = "HTTP/1.1 204 \r\nServer: API\r\nConnection: keep-alive\r\n\r\n";

/// A whole answer.
fn answer(status: &str, body: &str) -> String {
    let fields = "Server: API\r\nConnection: keep-alive\r\nContent-Type: application/json";
    format!(
        "HTTP/1.1 {status} \r\n{fields}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A VMM's process with these threads, and its API, which answers the n-th request with the n-th answer as it stands; without
/// one it never answers.
struct Fake {
    dir: tempfile::TempDir,
    asked: Arc<Mutex<Vec<String>>>,
    vmm: ApiVmm,
}

impl Fake {
    fn new(dialect: Dialect, threads: &[(i32, &str, &str)], answers: &[String]) -> Fake {
        let dir = tempfile::tempdir().unwrap();
        for (thread, name, schedstat) in threads {
            let path = dir.path().join(format!("40/task/{thread}"));
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("comm"), format!("{name}\n")).unwrap();
            std::fs::write(path.join("schedstat"), schedstat).unwrap();
            std::fs::write(path.join("syscall"), "running\n").unwrap();
        }
        let socket = dir.path().join("api");
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (heard, mut answers) = (asked.clone(), answers.to_vec());
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let mut stream = listener.accept().await.unwrap().0;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
                stream.read_exact(&mut body).await.unwrap();
                assert!(head.contains("\r\nhost: localhost\r\n"), "{head}");
                assert_eq!(
                    head.contains("content-type: application/json"),
                    !body.is_empty(),
                    "{head}"
                );
                let line = head.lines().next().unwrap().strip_suffix(" HTTP/1.1").unwrap();
                let asked = format!("{line} {}", String::from_utf8(body).unwrap());
                heard.lock().unwrap().push(asked.trim().to_owned());
                if answers.is_empty() {
                    open.push(stream)
                } else {
                    stream.write_all(answers.remove(0).as_bytes()).await.unwrap()
                }
            }
        });
        let mut vmm = ApiVmm::new(dialect, &socket, dir.path(), 40);
        vmm.answer_limit = Duration::from_millis(300);
        Fake { dir, asked, vmm }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// A file of a thread's, as the kernel has it.
    fn write(&self, thread: i32, file: &str, text: &str) {
        let path = self.dir.path().join(format!("40/task/{thread}"));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(file), text).unwrap();
    }

    /// Its threads end.
    fn end(&self, threads: &[i32]) {
        for thread in threads {
            std::fs::remove_dir_all(self.dir.path().join(format!("40/task/{thread}"))).unwrap();
        }
    }
}

fn state(text: &str) -> String {
    answer("200", &format!(r#"{{"state":"{text}"}}"#))
}

const TWO: [(i32, &str, &str); 4] = [
    (40, "cloud-hyperviso", "99 0 1\n"),
    (41, "http-server", "99 0 1\n"),
    (43, "vcpu1", "3000 17 1\n"),
    (42, "vcpu0", "2000000 17 1\n"),
];

#[tokio::test]
async fn a_guest_that_runs_is_paused_first_and_its_window_is_what_its_vcpus_ran() {
    let mut fake = Fake::new(CloudHypervisor, &TWO, &[NO_CONTENT.into()]);
    let held = fake.vmm.hold().await.unwrap();
    assert!(
        matches!(held, Hold::Paused(Some(wall)) if wall > Duration::ZERO),
        "{held:?}"
    );
    assert_eq!(fake.vmm.window().run_us, Some(2_003));
    assert_eq!(fake.asked(), ["PUT /api/v1/vm.pause"]);
    // Nothing more is to be done.
    assert_eq!(fake.vmm.hold().await.unwrap(), Hold::Paused(None));
    assert_eq!(fake.asked().len(), 1);
}

#[tokio::test]
async fn where_the_kernel_does_not_count_the_run_time_is_unknown() {
    let mut fake = Fake::new(Firecracker, &[(42, "fc_vcpu 0", "")], &[NO_CONTENT.into()]);
    let held = fake.vmm.hold().await.unwrap();
    assert!(matches!(held, Hold::Paused(Some(_))), "{held:?}");
    assert_eq!(fake.vmm.window().run_us, None);
    assert_eq!(fake.asked(), [r#"PATCH /vm {"state":"Paused"}"#]);
}

#[tokio::test]
async fn one_that_is_not_booted_is_waited_for_and_the_window_begins_then() {
    let refused = answer(
        "400",
        r#"{"fault_message":"not supported before starting the microVM."}"#,
    );
    let not_started = answer("200", r#"{"id":"a","state":"Not started","vmm_version":"1"}"#);
    let mut fake = Fake::new(
        Firecracker,
        &[(42, "fc_vcpu 0", "5000 0 1\n")],
        &[refused, not_started, NO_CONTENT.into()],
    );
    let started = fake.vmm.since;
    assert_eq!(fake.vmm.hold().await.unwrap(), Hold::NotYet("prelaunch".into()));
    assert!(fake.vmm.since > started);
    let held = fake.vmm.hold().await.unwrap();
    assert!(matches!(held, Hold::Paused(Some(_))), "{held:?}");
}

#[tokio::test]
async fn where_the_answer_to_pause_is_lost_the_window_is_reported_all_the_same() {
    let refused = answer("500", "no");
    let paused = answer("200", r#"{"state":"Paused"}"#);
    // Half an answer, then refused because it was carried out.
    let half = "HTTP/1.1 204 No Con".to_owned();
    let mut fake = Fake::new(CloudHypervisor, &TWO, &[half, refused, paused]);
    let error = fake.vmm.hold().await.unwrap_err().to_string();
    let prefix = format!("Cloud Hypervisor: vm.pause on {}/api: ", fake.dir.path().display());
    assert!(error.starts_with(&prefix), "{error}");
    let held = fake.vmm.hold().await.unwrap();
    assert!(matches!(held, Hold::Paused(Some(_))), "{held:?}");
}

#[tokio::test]
async fn an_answer_that_never_comes_is_an_error() {
    let mut fake = Fake::new(CloudHypervisor, &TWO, &[]);
    let error = fake.vmm.hold().await.unwrap_err().to_string();
    assert!(error.ends_with("no answer within 0 s"), "{error}");
    assert!(fake.vmm.lost);
    assert!(fake.vmm.run_state().await.is_err() && fake.vmm.threads().await.is_err());
    assert!(fake.vmm.power_down().await.is_err() && fake.vmm.quit().await.is_err());
}

#[tokio::test]
async fn one_that_cannot_be_paused_is_told_apart_from_one_that_boots() {
    let refused = answer("500", r#"["Error from API","a device cannot be paused"]"#);
    let running = answer("200", r#"{"state":"Running"}"#);
    let answers: Vec<String> = (0..MAX_PAUSE_REFUSALS)
        .flat_map(|_| [refused.clone(), running.clone()])
        .collect();
    let mut fake = Fake::new(CloudHypervisor, &TWO, &answers);
    for _ in 1..MAX_PAUSE_REFUSALS {
        assert_eq!(fake.vmm.hold().await.unwrap(), Hold::NotYet("running".into()));
    }
    let held = fake.vmm.hold().await.unwrap();
    assert!(
        matches!(&held, Hold::Runs(text) if text.contains("(status 500)")),
        "{held:?}"
    );
    // Then there is nothing to resume.
    fake.vmm.release(&Release::Continue).await.unwrap();
    assert_eq!(fake.asked().len(), answers.len());
}

#[tokio::test]
async fn threads_are_complete_and_have_their_places() {
    let info = |vcpus: u32| {
        let topology = r#"{"threads_per_core":2,"cores_per_die":1,"dies_per_package":1,"packages":1}"#;
        let cpus = format!(r#"{{"boot_vcpus":{vcpus},"max_vcpus":4,"topology":{topology}}}"#);
        answer("200", &format!(r#"{{"config":{{"cpus":{cpus}}},"state":"Paused"}}"#))
    };
    let mut fake = Fake::new(CloudHypervisor, &TWO, &[info(2), info(3), answer("200", "{}")]);
    let threads = fake.vmm.threads().await.unwrap();
    let of = |vcpu: &Vcpu| (vcpu.cpu_index, vcpu.thread_id, vcpu.props["thread-id"].as_u64());
    assert_eq!(
        threads.vcpus.iter().map(of).collect::<Vec<_>>(),
        [(0, 42, Some(0)), (1, 43, Some(1))]
    );
    // By its names, which `change` reads, and not by asking it.
    assert!(!threads.may_grow && fake.vmm.reports_every_change());
    let error = fake.vmm.threads().await.unwrap_err().to_string();
    assert!(error.contains("3 vCPUs, and 2 threads"), "{error}");
    let error = fake.vmm.threads().await.unwrap_err().to_string();
    assert!(error.contains("unexpected answer: missing field `config`"), "{error}");
}

#[tokio::test]
async fn a_lost_answer_to_resume_is_made_good() {
    let refused = || answer("500", "no");
    let answers = [refused(), state("Running"), refused(), state("Paused")];
    let mut fake = Fake::new(CloudHypervisor, &TWO, &answers);
    fake.vmm.held = true;
    assert!(fake.vmm.release(&Release::Continue).await.is_ok());
    let error = fake.vmm.release(&Release::Continue).await.unwrap_err();
    assert!(error.to_string().contains("vm.resume"), "{error}");
}

/// Cloud Hypervisor takes no request while its guest has vCPUs that it was asked for.
#[tokio::test]
async fn an_earlier_request_for_fewer_vcpus_stands() {
    let pending = || answer("429", r#"["Too Many Requests"]"#);
    let shape = answer("200", r#"{"config":{"cpus":{"boot_vcpus":1,"max_vcpus":3}}}"#);
    let mut fake = Fake::new(CloudHypervisor, &TWO, &[pending(), shape, pending()]);
    let soon = std::time::Instant::now() + Duration::from_secs(10);
    assert_eq!(fake.vmm.resize(2, 1, soon).await.unwrap(), ResizeStart::Begun(1));
    let more = fake.vmm.resize(2, 3, soon).await.unwrap();
    assert!(
        matches!(&more, ResizeStart::Impossible(text) if text.contains("429")),
        "{more:?}"
    );
}

#[tokio::test]
async fn each_is_ended_in_its_own_way() {
    let answers = [state("Running"), NO_CONTENT.into(), state("Paused"), NO_CONTENT.into()];
    let mut fake = Fake::new(CloudHypervisor, &TWO, &answers);
    assert_eq!(fake.vmm.power_down().await.unwrap(), PowerDown::Requested);
    assert_eq!(fake.vmm.power_down().await.unwrap(), PowerDown::NotRunning);
    assert_eq!(fake.vmm.quit().await.unwrap(), Quit::Requested);
    let commands = [fake.asked()[1].clone(), fake.asked()[3].clone()];
    assert_eq!(commands, ["PUT /api/v1/vm.power-button", "PUT /api/v1/vmm.shutdown"]);

    let refused = answer(
        "400",
        r#"{"fault_message":"SendCtrlAltDel does not supported on aarch64."}"#,
    );
    let mut fake = Fake::new(Firecracker, &TWO, &[state("Running"), refused]);
    let refused = fake.vmm.power_down().await.unwrap();
    assert!(
        matches!(&refused, PowerDown::Refused(text) if text.contains("aarch64")),
        "{refused:?}"
    );
    assert_eq!(fake.asked()[1], r#"PUT /actions {"action_type":"SendCtrlAltDel"}"#);
    assert_eq!(fake.vmm.quit().await.unwrap(), Quit::BySignal);
}

/// Cloud Hypervisor calls a VM that was shut down what it was before its boot, or has none any more.
#[rstest::rstest]
#[case(CloudHypervisor, state("Created"))]
#[case(CloudHypervisor, answer("404", r#"["Error from API","VM is not created"]"#))]
#[case(CloudHypervisor, state("Shutdown"))]
#[case(Firecracker, state("Not started"))]
#[tokio::test]
async fn a_guest_that_was_shut_down_is_told_from_one_that_was_never_booted(
    #[case] dialect: Dialect,
    #[case] down: String,
) {
    let answers = [down.clone(), state("Running"), down.clone(), state("Running")];
    let mut fake = Fake::new(dialect, &TWO, &answers);
    let first = fake.vmm.run_state().await.unwrap();
    assert!(first == "prelaunch" || first == "shutdown", "{first}");
    assert_eq!(fake.vmm.run_state().await.unwrap(), "running");
    fake.vmm.held = true;
    assert_eq!(fake.vmm.run_state().await.unwrap(), "shutdown");
    // What is booted next is not paused.
    assert!(!fake.vmm.held);
    assert_eq!(fake.vmm.run_state().await.unwrap(), "running");
}

#[tokio::test]
async fn a_vm_without_vcpu_threads_is_asked_nothing_for_them() {
    let mut fake = Fake::new(CloudHypervisor, &TWO, &[]);
    fake.end(&[42, 43]);
    let error = fake.vmm.threads().await.unwrap_err().to_string();
    assert_eq!(error, "find vCPU threads by name: no thread is named as a vCPU");
    assert!(fake.asked().is_empty());
}

#[tokio::test]
async fn one_that_nobody_configures_is_asked_seldom_and_paused_once_it_has_threads() {
    let answers = [state("Not started"), NO_CONTENT.into()];
    let mut fake = Fake::new(Firecracker, &[(40, "firecracker", "")], &answers);
    for _ in 0..200 {
        assert_eq!(fake.vmm.hold().await.unwrap(), Hold::NotYet("prelaunch".into()));
    }
    assert_eq!(fake.asked(), ["GET /"]);
    fake.write(41, "comm", "fc_vcpu 0\n");
    fake.write(41, "syscall", "running\n");
    let before = fake.vmm.since;
    let held = fake.vmm.hold().await.unwrap();
    // The window is no longer than since the last look at the names.
    assert!(
        matches!(held, Hold::Paused(Some(wall)) if wall <= before.elapsed()),
        "{held:?}"
    );
    assert_eq!(fake.asked()[1..], [r#"PATCH /vm {"state":"Paused"}"#]);
}

/// Firecracker answers 204 to a pause of what is paused. Threads that wait for a command are in no ioctl.
#[rstest::rstest]
#[case::paused("202 0x1 0x2", "Paused", true)]
#[case::unknown("", "Paused", true)]
#[case::booted_by_others("202 0x1 0x2", "Running", false)]
#[case::runs("running", "", false)]
#[case::halted(&format!("{} 0x5 0xae80", crate::vmm::IOCTL), "", false)]
#[tokio::test]
async fn a_snapshot_that_is_loaded_paused_has_no_window(
    #[case] syscall: &str,
    #[case] told: &str,
    #[case] never_ran: bool,
) {
    let answers = match told {
        "" => vec![NO_CONTENT.into()],
        told => vec![state(told), NO_CONTENT.into()],
    };
    let mut fake = Fake::new(Firecracker, &[(42, "fc_vcpu 0", "5000 0 1\n")], &answers);
    fake.write(42, "syscall", syscall);
    let held = fake.vmm.hold().await.unwrap();
    assert!(
        matches!(held, Hold::Paused(window) if window.is_none() == never_ran),
        "{held:?}"
    );
    // One that executes the guest is asked nothing before.
    assert_eq!(fake.asked().len(), if never_ran || told.is_empty() { 1 } else { 2 });
}
