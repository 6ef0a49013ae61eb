//! What is ordered of `steliad-quiet`, and what its answers mean for instances.

use std::sync::{Arc, Mutex};

use stelia_api::ReasonCode;
use stelia_api::quiet::{Remaining, RemainingCause, Report};
use stelia_settings::IrqSteering;
use steliad_quiet::order::Order;

use super::*;
use crate::quiet::{self, OrderExecutor};

/// Notes the orders, and answers as the test says.
#[derive(Default)]
struct Fake {
    ordered: Mutex<Vec<Order>>,
    answer: Mutex<Option<Result<Report, String>>>,
    in_force: bool,
}

impl OrderExecutor for Fake {
    fn carry_out(&self, order: &Order) -> Result<Report, String> {
        self.ordered.lock().unwrap().push(order.clone());
        self.answer
            .lock()
            .unwrap()
            .clone()
            .unwrap_or_else(|| Ok(Report::default()))
    }

    fn may_be_in_force(&self) -> bool {
        self.in_force
    }
}

impl Fake {
    fn ordered(&self) -> Vec<Order> {
        self.ordered.lock().unwrap().clone()
    }

    fn last(&self) -> Option<Order> {
        self.ordered().pop()
    }

    fn answers(&self, answer: Result<Report, String>) {
        *self.answer.lock().unwrap() = Some(answer);
    }
}

impl Node {
    fn ordering(&self, fake: &Arc<Fake>) {
        tokio::spawn(quiet::run(self.handle.clone(), fake.clone(), self.cancel.clone()));
    }

    fn reasons(&self, pod: &Pod) -> Vec<(ReasonCode, String)> {
        let view = self.handle.view();
        let reasons = view.instances[&pod.uid].degraded.iter();
        reasons.map(|reason| (reason.code, reason.text.clone())).collect()
    }
}

fn vms(order: &Order) -> Vec<(String, String)> {
    let vms = order.vms.iter();
    vms.map(|(pod, vm)| (pod.clone(), vm.cpus.to_string())).collect()
}

#[tokio::test]
async fn the_setting_is_shown_before_there_is_a_vm_and_follows_a_reload() {
    let node = Node::new();
    let fake = Arc::new(Fake::default());
    node.ordering(&fake);
    let shows = |node: &Node, steering: IrqSteering| {
        let quiet = node.handle.view().quiet.clone();
        (quiet.steering.as_str(), quiet.answered_us) == (steering.name(), 0)
    };
    node.until("the default is shown", |node| shows(node, IrqSteering::Shared))
        .await;
    let mut settings = node.settings.clone();
    settings.quiet.irq_steering = IrqSteering::Off;
    node.handle.reload(settings).await.unwrap();
    node.until("the new one is shown", |node| shows(node, IrqSteering::Off))
        .await;
    assert!(fake.ordered().is_empty());
}

#[tokio::test]
async fn a_vms_cpus_are_ordered_quiet_from_its_registration_to_its_end() {
    let mut node = Node::new();
    let fake = Arc::new(Fake::default());
    node.ordering(&fake);
    let (one, other) = (node.pod(1, "2-3"), node.pod(2, "4-5"));
    node.register(&one).await.unwrap();
    let first = [(uid(1).to_string(), "2-3".to_owned())];
    node.until("the first is ordered", |_| {
        fake.last().is_some_and(|order| vms(&order) == first)
    })
    .await;
    let order = fake.last().unwrap();
    assert!(order.steer);
    assert_eq!(order.shared, cpus("0-1,6-7"));
    node.register(&other).await.unwrap();
    node.until("the second, too", |_| {
        fake.last().is_some_and(|order| order.vms.len() == 2)
    })
    .await;
    node.handle.deregister(one.uid.clone()).await.unwrap();
    let second = [(uid(2).to_string(), "4-5".to_owned())];
    node.until("it is the second alone", |_| {
        fake.last().is_some_and(|order| vms(&order) == second)
    })
    .await;
    node.handle.deregister(other.uid.clone()).await.unwrap();
    node.until("nothing is left", |_| {
        fake.last().is_some_and(|order| order.vms.is_empty())
    })
    .await;
    let ordered = fake.ordered().len();
    node.reconcile().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(
        fake.ordered().len(),
        ordered,
        "nothing is in force, and nobody is woken"
    );
}

#[tokio::test]
async fn a_daemon_that_starts_orders_what_is_wanted_now_whatever_its_predecessor_ordered() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.register(&pod).await.unwrap();
    node.restart().await;
    node.reconcile().await;
    let fake = Arc::new(Fake::default());
    node.ordering(&fake);
    node.until("it is ordered", |_| {
        fake.last().is_some_and(|order| order.vms.len() == 1)
    })
    .await;

    let mut empty = Node::new();
    let (idle, left) = (
        Arc::new(Fake::default()),
        Arc::new(Fake {
            in_force: true,
            ..Fake::default()
        }),
    );
    empty.ordering(&idle);
    empty.ordering(&left);
    empty
        .until("what was left is undone", |_| {
            left.last().is_some_and(|order| order.vms.is_empty())
        })
        .await;
    assert_eq!(idle.last(), None, "where nothing was ordered, nobody is woken");
    empty.restart().await;
}

#[tokio::test]
async fn an_interrupt_that_remains_degrades_the_vm_whose_cpus_it_reaches_and_no_other() {
    let mut node = Node::new();
    let fake = Arc::new(Fake::default());
    node.ordering(&fake);
    let (one, _) = node.isolated(1, "2-3").await;
    let (other, _) = node.isolated(2, "4-5").await;
    fake.answers(Ok(Report {
        remaining: vec![Remaining {
            irq: 30,
            name: "eth0-rx-1".into(),
            cpus: cpus("3"),
            why: RemainingCause::NoVector,
            ..Remaining::default()
        }],
        ..Report::default()
    }));
    node.reconcile().await;
    node.until("it is a reason", |node| !node.reasons(&one).is_empty())
        .await;
    let text = "interrupt 30 (eth0-rx-1) reaches the CPUs 3: no other CPU has a free interrupt vector";
    assert_eq!(node.reasons(&one), [(ReasonCode::Interrupts, text.to_owned())]);
    assert_eq!(node.reasons(&other), []);
    let own = node.handle.on_behalf_of(&one.uid).view();
    let told = &own.instances[&one.uid].degraded[0].text;
    assert!(
        !told.contains("eth0"),
        "a pod reads the name of a device of the node: {told}"
    );
    assert_eq!(own.quiet, Arc::default());
    fake.answers(Ok(Report::default()));
    node.reconcile().await;
    node.until("it is none any more", |node| node.reasons(&one).is_empty())
        .await;
}

#[tokio::test]
async fn without_the_program_vms_run_isolated_and_say_so_and_it_is_asked_again() {
    let mut node = Node::new();
    let fake = Arc::new(Fake::default());
    fake.answers(Err("connect: No such file or directory".into()));
    node.ordering(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    let problems = |node: &Node| node.handle.view().problems();
    node.until("it is the node's problem", |node| !problems(node).is_empty())
        .await;
    assert_eq!(problems(&node)[0].code, ReasonCode::NotSteered);
    assert_eq!(node.reasons(&pod), []);
    let problem = node.handle.view().quiet.problem.clone();
    assert_eq!(problem.as_deref(), Some("connect: No such file or directory"));
    fake.answers(Ok(Report::default()));
    node.until("it is asked again", |node| problems(node).is_empty()).await;
    assert_eq!(node.handle.view().quiet.problem, None);
}

#[tokio::test]
async fn switched_off_nothing_is_ordered_and_what_was_is_undone_once() {
    let mut node = Node::new();
    node.settings.quiet.irq_steering = IrqSteering::Off;
    node.restart().await;
    let fake = Arc::new(Fake::default());
    node.ordering(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.reconcile().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(fake.ordered(), []);
    assert_eq!(node.reasons(&pod), []);
    node.settings.quiet.irq_steering = IrqSteering::Shared;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.until("it is switched on", |_| fake.last().is_some_and(|order| order.steer))
        .await;
    node.settings.quiet.irq_steering = IrqSteering::Off;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.until("it is undone", |_| {
        fake.last().is_some_and(|order| order.vms.is_empty())
    })
    .await;
}

#[tokio::test]
async fn a_vm_that_is_left_out_is_ordered_again_soon_and_is_degraded_if_it_stays_so() {
    let mut node = Node::new();
    let fake = Arc::new(Fake::default());
    let (one, _) = node.isolated(1, "2-3").await;
    let (other, _) = node.isolated(2, "4-5").await;
    fake.answers(Ok(Report {
        left_out: [(one.uid.to_string(), "it has no live instance".to_owned())].into(),
        ..Report::default()
    }));
    node.ordering(&fake);
    node.until("it is a reason", |node| !node.reasons(&one).is_empty())
        .await;
    assert!(fake.ordered().len() > 1, "the first time it may only begin");
    assert_eq!(node.reasons(&one)[0].0, ReasonCode::NotSteered);
    assert_eq!(node.reasons(&other), []);
    fake.answers(Ok(Report::default()));
    node.until("it is done", |node| node.reasons(&one).is_empty()).await;
}
