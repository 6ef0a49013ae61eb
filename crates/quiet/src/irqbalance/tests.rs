use std::fs;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use tempfile::TempDir;

use super::*;
use crate::files::Store;
use crate::kernel::Directory;
use crate::testing::{FakeKernel, set, vm};

/// What the fake irqbalance does with a message.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    AsTheRealOne,
    /// Answers this and nothing else.
    Says(&'static str),
    /// Keeps the connection and says nothing.
    Hangs,
    /// Sends and never ends.
    Endless,
    /// Ends the connection unheard.
    Closes,
}

#[derive(Debug)]
struct State {
    manner: Manner,
    interval: u64,
    /// By its environment.
    environment: CpuSet,
    /// As of its last scan.
    banned: CpuSet,
    /// What a message asked for since; `None` in it: its environment.
    asked: Option<Option<CpuSet>>,
    messages: Vec<String>,
}

impl State {
    fn scan(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.banned = asked.unwrap_or_else(|| self.environment.clone());
        }
    }

    /// The changes it was asked for since this was last called.
    fn told(&mut self) -> Vec<String> {
        let told = std::mem::take(&mut self.messages);
        told.into_iter().filter(|message| message != "setup").collect()
    }
}

/// One message with its credentials, as irqbalance receives it.
fn receive(stream: &UnixStream) -> Option<String> {
    let mut bytes = [0; 500];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut beside,
        RecvFlags::empty(),
    )
    .unwrap();
    let own = rustix::process::getuid();
    let is_ours = |message| matches!(message, RecvAncillaryMessage::ScmCredentials(who) if who.uid == own);
    beside
        .drain()
        .any(is_ours)
        .then(|| String::from_utf8(bytes[..got.bytes].to_vec()).unwrap())
}

/// An irqbalance with a socket, for as long as the test runs.
fn irqbalance(folder: &Path, pid: i32, environment: &str) -> Arc<Mutex<State>> {
    let state = Arc::new(Mutex::new(State {
        manner: Manner::AsTheRealOne,
        interval: 0,
        environment: set(environment),
        banned: set(environment),
        asked: None,
        messages: Vec::new(),
    }));
    let listener = UnixListener::bind(folder.join(format!("irqbalance{pid}.sock"))).unwrap();
    sockopt::set_socket_passcred(&listener, true).unwrap();
    let shared = state.clone();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let manner = shared.lock().unwrap().manner;
            let message = match manner {
                Manner::Closes => continue,
                _ => receive(&stream).expect("credentials"),
            };
            let mut state = shared.lock().unwrap();
            state.messages.push(message.clone());
            match (manner, message.as_str()) {
                (Manner::Hangs, _) => kept.push(stream),
                (Manner::Endless, _) => {
                    drop(state);
                    while stream.write_all(&[b'x'; 4096]).is_ok() {}
                }
                (Manner::Says(text), "setup") => stream.write_all(text.as_bytes()).unwrap(),
                (_, "setup") => {
                    let words = "IRQ 9 LOAD 2 DIFF 3 CLASS 4 ";
                    let answer = format!("SLEEP {} {words}BANNED {:0>8}", state.interval, state.banned.to_mask());
                    stream.write_all(answer.as_bytes()).unwrap();
                }
                (_, other) => {
                    // The real one ends with a segmentation fault without a word.
                    let word = other.strip_prefix("settings cpus ").unwrap().split(' ').next().unwrap();
                    assert!(!word.is_empty());
                    state.asked = Some((word != "NULL").then(|| set(word)));
                }
            }
        }
    });
    state
}

struct Node {
    folder: TempDir,
    procs: FakeKernel,
    store: Directory,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sockets")).unwrap();
        let store = Directory::open(folder.path().join("store")).unwrap();
        Self {
            folder,
            procs: FakeKernel::default(),
            store,
        }
    }

    fn sockets(&self) -> PathBuf {
        self.folder.path().join("sockets")
    }

    fn process(&self, pid: i32, start: u64) {
        let before = "0 ".repeat(18);
        let stat = format!("{pid} (irqbalance) S {before}{start} 0");
        assert_eq!(start_time(&stat), Some(start));
        self.procs.tree().put(&format!("/proc/{pid}/stat"), &stat);
    }

    /// With one irqbalance that runs.
    fn with_irqbalance(environment: &str) -> (Self, Arc<Mutex<State>>) {
        let node = Self::new();
        node.process(70, 700);
        let state = irqbalance(&node.sockets(), 70, environment);
        (node, state)
    }

    fn carry_out(&self, exclusive: &[&str]) -> Report {
        self.order(&Order {
            steer: true,
            vms: exclusive.iter().map(|list| (format!("vm-{list}"), vm(list))).collect(),
            ..Order::default()
        })
    }

    fn order(&self, order: &Order) -> Report {
        let mut report = Report::default();
        let system = System {
            files: &self.procs,
            store: &self.store,
        };
        carry_out(system, &self.sockets(), order, &mut report);
        report
    }
}

fn texts(report: &Report) -> Vec<&str> {
    report.problems.iter().map(|problem| problem.text.as_str()).collect()
}

#[test]
fn the_cpus_of_vms_are_banned_beside_those_that_were_and_then_nothing_is_sent() {
    let (node, state) = Node::with_irqbalance("7");
    let report = node.carry_out(&["2-3", "5"]);
    assert_eq!((report.irqbalance, report.writes), (Irqbalance::Informed, 1));
    assert_eq!(state.lock().unwrap().told(), ["settings cpus 2-3,5,7"]);
    state.lock().unwrap().scan();
    for _ in 0..2 {
        let report = node.carry_out(&["2-3", "5"]);
        assert_eq!((report.irqbalance, report.writes), (Irqbalance::Informed, 0));
    }
    assert_eq!(state.lock().unwrap().told(), [""; 0]);
}

#[test]
fn when_the_last_vm_ends_it_has_what_it_had() {
    for (environment, last) in [("7", "settings cpus 7"), ("", "settings cpus NULL")] {
        let (node, state) = Node::with_irqbalance(environment);
        node.carry_out(&["2-3"]);
        state.lock().unwrap().scan();
        state.lock().unwrap().told();
        let report = node.carry_out(&[]);
        assert_eq!(report.irqbalance, Irqbalance::Absent);
        assert_eq!(state.lock().unwrap().told(), [last]);
        state.lock().unwrap().scan();
        node.carry_out(&[]);
        assert_eq!(state.lock().unwrap().told(), [""; 0]);
        assert_eq!(state.lock().unwrap().banned, set(environment));
    }
}

#[test]
fn without_steering_it_has_what_it_had_too() {
    let (node, state) = Node::with_irqbalance("");
    node.carry_out(&["2-3"]);
    state.lock().unwrap().scan();
    node.order(&Order {
        vms: [("vm".to_owned(), vm("2-3"))].into(),
        ..Order::default()
    });
    assert_eq!(
        state.lock().unwrap().told(),
        ["settings cpus 2-3", "settings cpus NULL"]
    );
}

#[test]
fn one_of_two_vms_ends_and_the_others_ban_stays() {
    let (node, state) = Node::with_irqbalance("");
    node.carry_out(&["2-3", "5"]);
    state.lock().unwrap().scan();
    node.carry_out(&["5"]);
    assert_eq!(state.lock().unwrap().told(), ["settings cpus 2-3,5", "settings cpus 5"]);
}

#[test]
fn a_vm_that_starts_before_the_next_scan_does_not_make_the_former_ones_ban_the_nodes() {
    let (node, state) = Node::with_irqbalance("");
    state.lock().unwrap().interval = 10;
    node.carry_out(&["2-3"]);
    // It still answers that nothing is banned.
    assert_eq!(node.carry_out(&["2-3"]).writes, 0);
    state.lock().unwrap().scan();
    node.carry_out(&[]);
    // It still answers 2-3.
    node.carry_out(&["5"]);
    node.carry_out(&[]);
    let all = [
        "settings cpus 2-3",
        "settings cpus NULL",
        "settings cpus 5",
        "settings cpus NULL",
    ];
    assert_eq!(state.lock().unwrap().told(), all);
}

#[test]
fn one_that_was_started_again_is_told_again_and_its_own_list_is_asked_anew() {
    let (node, state) = Node::with_irqbalance("7");
    node.carry_out(&["2"]);
    state.lock().unwrap().scan();
    state.lock().unwrap().told();
    // Of the same number even.
    fs::remove_file(node.sockets().join("irqbalance70.sock")).unwrap();
    node.process(70, 701);
    let again = irqbalance(&node.sockets(), 70, "6");
    node.carry_out(&["2"]);
    assert_eq!(again.lock().unwrap().told(), ["settings cpus 2,6"]);
    again.lock().unwrap().scan();
    node.carry_out(&[]);
    assert_eq!(again.lock().unwrap().told(), ["settings cpus 6"]);
}

#[test]
fn one_that_starts_later_is_told_when_it_is_there() {
    let node = Node::new();
    assert_eq!(node.carry_out(&["2"]), Report::default());
    node.process(71, 710);
    let state = irqbalance(&node.sockets(), 71, "");
    assert_eq!(node.carry_out(&["2"]).irqbalance, Irqbalance::Informed);
    assert_eq!(state.lock().unwrap().told(), ["settings cpus 2"]);
}

#[test]
fn what_an_administrator_bans_and_lifts_meanwhile_is_kept() {
    let (node, state) = Node::with_irqbalance("7");
    node.carry_out(&["2-3"]);
    state.lock().unwrap().scan();
    node.carry_out(&["2-3"]);
    state.lock().unwrap().told();
    // irqbalance-ui: 6 banned, 7 and a VM's CPU lifted.
    state.lock().unwrap().banned = set("2,6");
    node.carry_out(&["2-3"]);
    assert_eq!(state.lock().unwrap().told(), ["settings cpus 2-3,6"]);
    state.lock().unwrap().scan();
    node.carry_out(&[]);
    assert_eq!(state.lock().unwrap().told(), ["settings cpus 6"]);
}

#[test]
fn after_a_crash_between_record_and_message_the_message_is_sent_and_the_base_is_right() {
    for exclusive in [&["2"][..], &[]] {
        let (node, state) = Node::with_irqbalance("7");
        node.carry_out(&["2-3"]);
        state.lock().unwrap().scan();
        node.carry_out(&["2-3"]);
        state.lock().unwrap().told();
        // The next list is recorded, and not sent.
        let mut record: Record = store_json::load(&node.store, RECORD).unwrap();
        let told = record.get_mut(&70).unwrap();
        told.before = told.ours.clone();
        told.ours = exclusive
            .iter()
            .fold(told.base.clone(), |all, list| all.union(&set(list)));
        told.at = 1;
        store_json::save(&node.store, RECORD, &record).unwrap();
        node.carry_out(exclusive);
        state.lock().unwrap().scan();
        node.carry_out(&[]);
        state.lock().unwrap().scan();
        assert_eq!(state.lock().unwrap().banned, set("7"), "{exclusive:?}");
    }
}

#[test]
fn one_without_a_socket_is_told_by_the_administrator() {
    let node = Node::new();
    node.process(80, 800);
    node.procs.tree().put(PROCESSES, "80");
    let report = node.carry_out(&["2-3"]);
    assert_eq!(report.irqbalance, Irqbalance::NotInformed);
    let [text] = texts(&report)[..] else {
        panic!("{report:?}")
    };
    assert!(text.starts_with("irqbalance, process 80: it has no socket"), "{text}");
    assert!(text.contains("IRQBALANCE_BANNED_CPULIST=2-3 to"), "{text}");
    assert_eq!(node.carry_out(&[]), Report::default());
}

#[test]
fn a_socket_that_its_process_left_behind_is_nobodys() {
    let node = Node::new();
    drop(UnixListener::bind(node.sockets().join("irqbalance90.sock")));
    fs::write(node.sockets().join("irqbalance.sock"), "").unwrap();
    fs::write(node.sockets().join("other"), "").unwrap();
    assert_eq!(node.carry_out(&["2"]), Report::default());
}

#[test]
fn a_list_that_it_would_cut_is_reported_and_not_sent() {
    let (node, state) = Node::with_irqbalance("");
    let every_other: Vec<String> = (0..200).map(|number| (2 * number).to_string()).collect();
    let report = node.carry_out(&[&every_other.join(",")]);
    assert_eq!(report.irqbalance, Irqbalance::NotInformed);
    assert!(texts(&report)[0].contains("longer than the 499 bytes"), "{report:?}");
    assert_eq!(state.lock().unwrap().told(), [""; 0]);
    // What is in force by then is undone nevertheless.
    node.carry_out(&["2"]);
    state.lock().unwrap().scan();
    node.carry_out(&[&every_other.join(",")]);
    node.carry_out(&[]);
    assert_eq!(state.lock().unwrap().told(), ["settings cpus 2", "settings cpus NULL"]);
}

#[test]
fn one_that_answers_nonsense_is_told_nothing() {
    let nonsense = [
        "",
        "BANNED 3",
        "SLEEP BANNED 3",
        "SLEEP 10 ",
        "SLEEP 10 BANNED x",
        "SLEEP 10 BANNED 3 4",
        "SLEEP -1 BANNED 3",
    ];
    for answer in nonsense {
        let (node, state) = Node::with_irqbalance("");
        state.lock().unwrap().manner = Manner::Says(answer);
        let report = node.carry_out(&["2"]);
        assert_eq!(report.irqbalance, Irqbalance::NotInformed, "{answer}");
        assert!(texts(&report)[0].contains("is not understood"), "{report:?}");
        assert_eq!(state.lock().unwrap().told(), [""; 0]);
        assert_eq!(node.store.load(RECORD).unwrap(), None);
    }
}

#[test]
fn one_that_hangs_floods_or_hangs_up_is_waited_for_a_second_and_reported() {
    for (manner, words) in [
        (Manner::Hangs, "timed out"),
        (Manner::Endless, "does not end"),
        (Manner::Closes, ""),
    ] {
        let (node, state) = Node::with_irqbalance("");
        state.lock().unwrap().manner = manner;
        let began = Instant::now();
        let report = node.carry_out(&["2"]);
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{manner:?}: {:?}",
            began.elapsed()
        );
        assert_eq!(report.irqbalance, Irqbalance::NotInformed);
        assert!(texts(&report)[0].contains(words), "{manner:?}: {report:?}");
        // It is itself again.
        state.lock().unwrap().manner = Manner::AsTheRealOne;
        assert_eq!(node.carry_out(&["2"]).irqbalance, Irqbalance::Informed, "{manner:?}");
    }
}

#[test]
fn a_record_that_is_not_ours_changes_nothing() {
    let (node, state) = Node::with_irqbalance("");
    node.store.save(RECORD, "[]").unwrap();
    let report = node.carry_out(&["2"]);
    assert_eq!(report.irqbalance, Irqbalance::NotInformed);
    assert!(texts(&report)[0].contains("irqbalance.json"), "{report:?}");
    assert_eq!(state.lock().unwrap().messages, [""; 0]);
}

proptest! {
    /// Whatever VMs come and go, and whenever it scans: after the last one and two scans it has its own list.
    #[test]
    fn its_own_list_is_never_lost(
        steps in prop::collection::vec((prop::collection::vec(0_u32..6, 0..4), any::<bool>(), 0_u64..30), 0..20),
        environment in prop::collection::vec(0_u32..6, 0..3),
    ) {
        let environment: CpuSet = environment.into_iter().collect();
        let (mut banned, mut asked) = (environment.clone(), None);
        let (mut told, mut now): (Option<SentBan>, u64) = (None, 100);
        let last = (Vec::new(), true, 30);
        for (exclusive, scans, passed) in steps.into_iter().chain([last.clone(), last.clone(), last]) {
            now += passed;
            if scans || passed >= 20 {
                banned = asked.take().unwrap_or(banned);
            }
            let setup = Setup { interval: 10, banned: banned.clone() };
            let exclusive: CpuSet = exclusive.into_iter().collect();
            let (next, in_force) = last_ban(told.as_ref(), &setup, 1, now);
            let want = next.base.union(&exclusive);
            prop_assert!(next.base == environment, "{:?}", next);
            told = Some(if want == in_force && want == next.ours {
                next
            } else {
                asked = Some(want.clone());
                SentBan { before: next.before.union(&in_force), ours: want, at: now, ..next }
            });
        }
        prop_assert_eq!(banned, environment);
    }
}
