//! Random worlds: an API server, two nodes that admit by themselves, one writer after the other, watches that are late, answers that are lost, other
//! schedulers, authors who change their pods or let them pass for others. What a writer sent arrives before the next one begins, unless it was frozen for
//! longer: such a binding may arrive at any time, and costs a refusal of one of the two pods that want the same CPUs. The next writer may be a former one.

mod properties;

use std::collections::BTreeMap;

use super::*;

const NODES: [&str; 2] = ["a", "b"];
const CPUS: u32 = 8;

#[derive(Debug, Clone, Default)]
struct TruePod {
    version: Version,
    made: Version,
    request: usize,
    node: Option<NodeName>,
    cpus: Option<CpuSet>,
    /// What its binding said, whatever its author made of that.
    told: Option<CpuSet>,
    /// Its author changed its annotation or its size.
    rewritten: bool,
    /// It calls itself the mirror of this pod. Its node does not run it.
    mirror_of: Option<u128>,
    foreign: bool,
    /// The node's object showed it.
    shown: bool,
    ending: bool,
    /// Its node refused it.
    failed: bool,
    admitted: bool,
}

#[derive(Debug, Clone)]
enum Event {
    Pod(u128, TruePod),
    PodGone(u128),
    Object(NodeName, Version, Plain),
}

/// A bind of the writer whose outcome it does not know.
#[derive(Debug, Clone)]
struct Task {
    ticket: Ticket,
    is_sent: bool,
    /// The writer was succeeded since, and is the writer again.
    is_former: bool,
}

/// A binding that was sent, and has not arrived.
#[derive(Debug, Clone)]
struct Post {
    ticket: Ticket,
    /// Its writer was frozen for longer than the next one waited.
    is_frozen: bool,
}

struct World {
    clock: Version,
    now: Moment,
    pods: BTreeMap<u128, TruePod>,
    /// What each node gave.
    given: BTreeMap<NodeName, BTreeMap<u128, CpuSet>>,
    objects: BTreeMap<NodeName, (Version, Plain)>,
    /// Events of pods and objects; how far the writer has read each.
    logs: [Vec<Event>; 2],
    read: [usize; 2],
    /// Where the writer began to read.
    from: [usize; 2],
    writer: Reservations<Lowest>,
    tasks: Vec<Task>,
    /// The last writer, and its binds.
    former: Option<(Reservations<Lowest>, Vec<Task>)>,
    posts: Vec<Post>,
    pods_made: u128,
    binds: usize,
    /// Pods that a frozen writer's binding bound after the next writer began.
    late: BTreeSet<u128>,
    /// Pods that were deleted by force, and until when their nodes run them.
    lingering: Vec<(Moment, u128, TruePod)>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            clock: 0,
            now: seconds(0),
            pods: BTreeMap::new(),
            given: NODES.iter().map(|name| (node(name), BTreeMap::new())).collect(),
            objects: BTreeMap::new(),
            logs: Default::default(),
            read: [0; 2],
            from: [0; 2],
            writer: Reservations::new(Lowest::default()),
            tasks: Vec::new(),
            former: None,
            posts: Vec::new(),
            pods_made: 0,
            binds: 0,
            late: BTreeSet::new(),
            lingering: Vec::new(),
        };
        NODES.iter().for_each(|name| world.publish(&node(name)));
        world.take_over(None, false);
        world
    }

    fn tick(&mut self) -> Version {
        self.clock += 1;
        self.clock
    }

    fn changed(&mut self, uid: u128) {
        let version = self.tick();
        self.pods.get_mut(&uid).unwrap().version = version;
        let event = self.event(uid);
        self.logs[0].push(event);
    }

    /// What the API server says of the pod now.
    fn event(&self, uid: u128) -> Event {
        match self.pods.get(&uid) {
            Some(pod) if !pod.failed => Event::Pod(uid, pod.clone()),
            _ => Event::PodGone(uid),
        }
    }

    fn alive(&self) -> impl Iterator<Item = u128> {
        let alive = self.pods.iter().filter(|(_, pod)| !pod.failed);
        alive.map(|(uid, _)| *uid)
    }

    fn publish(&mut self, on: &NodeName) {
        let version = self.tick();
        let given = &self.given[on];
        let used = given.values().fold(CpuSet::new(), |used, cpus| used.union(cpus));
        let object = Plain {
            free: CpuSet::below(CPUS).difference(&used),
            pods: given.keys().map(|pod| uid(*pod)).collect(),
            cpus_at_container_start: false,
        };
        for uid in given.keys() {
            if let Some(pod) = self.pods.get_mut(uid) {
                pod.shown = true;
            }
        }
        self.objects.insert(on.clone(), (version, object.clone()));
        self.logs[1].push(Event::Object(on.clone(), version, object));
    }

    fn make(&mut self, request: usize, on: Option<NodeName>, mirror_of: Option<u128>) {
        self.pods_made += 1;
        let version = self.tick();
        let pod = TruePod {
            version,
            made: version,
            request,
            foreign: on.is_some() && mirror_of.is_none(),
            node: on,
            mirror_of,
            ..TruePod::default()
        };
        self.pods.insert(self.pods_made, pod);
        self.changed(self.pods_made);
    }

    fn hear(writer: &mut Reservations<Lowest>, event: &Event, now: Moment) {
        match event {
            Event::Pod(uid, truth) => writer.pod_changed(
                ObservedPod {
                    cpus: truth.cpus.clone(),
                    shown_as: truth.mirror_of.map(super::uid),
                    is_running: truth.admitted,
                    ending: truth.ending,
                    ..pod(*uid, truth.version, truth.node.as_deref(), truth.request)
                },
                now,
            ),
            Event::PodGone(uid) => writer.pod_gone(super::uid(*uid), Some("refused"), now),
            Event::Object(on, version, object) => writer.object_changed(on, *version, object.clone(), now),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.writer.advance(self.now);
        let now = self.now;
        for (_, uid, _) in self.lingering.extract_if(.., |(until, ..)| *until <= now) {
            self.given.values_mut().for_each(|given| drop(given.remove(&uid)));
        }
    }

    /// The next writer reads everything, when the bindings of the former one have arrived or never will, and waits for pods that it does not know.
    /// `frozen`: by choice, some bindings come later. `is_former`: it is the one before the last.
    fn take_over(&mut self, frozen: Option<usize>, is_former: bool) {
        for (place, mut post) in std::mem::take(&mut self.posts).into_iter().enumerate() {
            post.is_frozen |= frozen.is_some_and(|choice| !(choice + place).is_multiple_of(3));
            if post.is_frozen {
                self.posts.push(post);
            } else if place.is_multiple_of(2) {
                self.land(post);
            }
        }
        // Those that it was sending just then.
        for (place, task) in self.tasks.iter_mut().enumerate().filter(|(_, task)| !task.is_former) {
            if frozen.is_some_and(|choice| !(choice + place).is_multiple_of(3)) {
                task.is_sent = true;
                self.posts.push(Post {
                    ticket: task.ticket.clone(),
                    is_frozen: true,
                });
            }
        }
        let (mut writer, tasks) = self.former.take().filter(|_| is_former).unwrap_or_else(World::nobody);
        self.list(&mut writer);
        let mut before = std::mem::replace(&mut self.writer, writer);
        for task in self.tasks.extract_if(.., |task| !task.is_sent) {
            before.bind_failed(&task.ticket);
        }
        let sent = std::mem::replace(&mut self.tasks, tasks).into_iter();
        let former = sent.map(|task| Task {
            is_former: true,
            ..task
        });
        self.former = Some((before, former.collect()));
        self.pass(SETTLE_TIMEOUT);
        self.read = [0, 1].map(|log: usize| self.logs[log].len());
        self.from = self.read;
    }

    fn fresh(&self) -> Reservations<Lowest> {
        let (mut writer, _) = Self::nobody();
        self.list(&mut writer);
        writer
    }

    /// A writer that knows nothing.
    fn nobody() -> (Reservations<Lowest>, Vec<Task>) {
        (Reservations::new(Lowest::default()), Vec::new())
    }

    fn list(&self, writer: &mut Reservations<Lowest>) {
        let pods = self.alive().map(|uid| self.event(uid));
        let objects = self.objects.iter();
        let objects = objects.map(|(on, (version, all))| Event::Object(on.clone(), *version, all.clone()));
        for event in pods.chain(objects) {
            Self::hear(writer, &event, self.now);
        }
        let listed = self.alive().map(uid).collect();
        writer.pods_listed(&listed, self.clock, self.now);
    }

    fn read_on(&mut self, log: usize, again: bool) {
        let Some(event) = self.logs[log].get(self.read[log]) else {
            return;
        };
        Self::hear(&mut self.writer, event, self.now);
        if again {
            // A late answer to another question.
            let earlier = (self.from[log] + self.read[log]) / 2;
            let event = &self.logs[log][earlier];
            Self::hear(&mut self.writer, event, self.now);
        }
        self.read[log] += 1;
    }

    fn start_bind(&mut self, choice: usize) {
        let waiting = self.pods.iter().filter(|(_, pod)| pod.node.is_none());
        let waiting: Vec<u128> = waiting.map(|(uid, _)| *uid).collect();
        let Some(uid) = pick(&waiting, choice) else { return };
        let truth = &self.pods[uid];
        let version = [truth.made, truth.version][choice % 2];
        let on = node(NODES[choice / 3 % 2]);
        let asked = asked(*uid, version, truth.request);
        let Ok(ticket) = self.writer.start_bind(asked, &on, self.now) else {
            return;
        };
        // What came late is known by now, and nobody else is promised its CPUs.
        for other in self.late.iter().filter(|other| *other != uid) {
            let is_known = self.writer.bound_to(super::uid(*other)).as_ref() == Some(&on);
            let late = self.pods.get(other);
            let late = late.filter(|pod| is_known && !pod.failed && !pod.rewritten);
            let theirs = late.and_then(|late| late.told.clone()).unwrap_or_default();
            let own = ticket.cpus.clone().unwrap_or_default();
            assert!(
                own.is_disjoint(&theirs),
                "pod {uid} is promised {own} of the late {other}"
            );
        }
        self.tasks.push(Task {
            ticket,
            is_sent: false,
            is_former: false,
        });
    }

    /// The writer sends a binding, again if its answer was lost before; how it fares is by choice.
    fn step(&mut self, choice: usize) {
        if self.tasks.is_empty() {
            return;
        }
        let task = self.tasks.swap_remove(choice % self.tasks.len());
        let ticket = task.ticket.clone();
        if !self.writer.is_open(&ticket) {
            return;
        }
        if task.is_former {
            // Any change of the pod makes what was sent in vain.
            let uid = number(ticket.pod);
            if self.pods.get(&uid).is_some_and(|pod| !pod.failed) {
                self.changed(uid);
            }
            self.read_pod(uid);
            assert!(!self.writer.is_open(&ticket), "the bind of a former term is given up");
            return;
        }
        let task = Task { is_sent: true, ..task };
        let post = Post {
            ticket: ticket.clone(),
            is_frozen: false,
        };
        match choice / 7 % 3 {
            0 if self.land(post.clone()) => self.writer.bind_succeeded(&ticket, self.now),
            0 => {
                // An earlier binding may have been late, so the pod is read.
                self.read_pod(number(ticket.pod));
                self.writer.bind_failed(&ticket);
            }
            1 => {
                self.land(post);
                self.tasks.push(task);
            }
            _ => {
                self.posts.push(post);
                self.tasks.push(task);
            }
        }
    }

    fn read_pod(&mut self, uid: u128) {
        let event = self.event(uid);
        Self::hear(&mut self.writer, &event, self.now);
    }

    /// The API server's rule: the version that is demanded, and not bound.
    fn land(&mut self, post: Post) -> bool {
        let (uid, ticket) = (number(post.ticket.pod), post.ticket);
        let Some(pod) = self.pods.get_mut(&uid) else {
            return false;
        };
        if pod.version != ticket.version || pod.node.is_some() || pod.ending {
            return false;
        }
        (pod.node, pod.cpus) = (Some(ticket.node.clone()), ticket.cpus.clone());
        (pod.told, pod.rewritten) = (ticket.cpus.clone(), false);
        self.changed(uid);
        if post.is_frozen {
            self.late.insert(uid);
            return true;
        }
        self.binds += 1;
        let own = ticket.cpus.unwrap_or_default();
        let others = self.pods.iter().filter(|(other, pod)| {
            // Of a pod that its author rewrote a later writer knows nothing else, and of one that came late perhaps nothing when this one was promised its CPUs.
            let is_honest = !pod.failed && !pod.foreign && !pod.rewritten && !self.late.contains(other);
            uid != **other && is_honest && pod.node.as_ref() == Some(&ticket.node)
        });
        for (other, truth) in others {
            let (theirs, on) = (truth.told.clone().unwrap_or_default(), &ticket.node);
            assert!(
                own.is_disjoint(&theirs),
                "pod {uid} has {own}, pod {other} {theirs} on {on}"
            );
        }
        true
    }

    fn admit(&mut self, choice: usize) {
        let given = &self.given;
        let waiting = self.pods.iter().filter(|(uid, pod)| {
            let ends = pod.ending && pod.admitted || pod.mirror_of.is_some();
            !pod.failed && !ends && pod.node.as_ref().is_some_and(|on| !given[on].contains_key(*uid))
        });
        let waiting: Vec<u128> = waiting.map(|(uid, _)| *uid).collect();
        let Some(uid) = pick(&waiting, choice) else { return };
        let pod = self.pods.get_mut(uid).unwrap();
        let on = pod.node.clone().unwrap();
        let given = self.given.get_mut(&on).unwrap();
        let used = given.values().fold(CpuSet::new(), |used, cpus| used.union(cpus));
        let free = CpuSet::below(CPUS).difference(&used);
        let wanted = match &pod.cpus {
            Some(cpus) => Some(cpus.clone()).filter(|cpus| cpus.is_subset(&free)),
            None => lowest(&free, pod.request),
        };
        match wanted {
            Some(cpus) => {
                pod.admitted = true;
                given.insert(*uid, cpus);
            }
            None => {
                let lingering = self.lingering.iter().map(|(.., pod)| pod);
                let mut others = self.pods.values().chain(lingering);
                let others = others.any(|other| (other.foreign || other.rewritten) && other.node.as_ref() == Some(&on));
                let told = self.pods[uid].told.clone().unwrap_or_default();
                let takers = given.iter().filter(|(_, cpus)| !cpus.is_disjoint(&told));
                let is_late = self.late.contains(uid) || takers.into_iter().any(|(taker, _)| self.late.contains(taker));
                assert!(
                    others || is_late,
                    "pod {uid} was refused on {on} without other schedulers"
                );
                self.pods.get_mut(uid).unwrap().failed = true;
                self.changed(*uid);
            }
        }
    }

    fn act(&mut self, action: u8, choice: usize, [foreign, hostile, frozen]: [bool; 3]) {
        self.pass(Duration::from_millis(700));
        let on = node(NODES[choice % 2]);
        let any: Vec<u128> = self.pods.keys().copied().collect();
        match action {
            0..=12 => self.make(choice % 4 + 1, None, None),
            13..=45 => self.start_bind(choice),
            46..=115 => self.step(choice),
            116..=130 if !self.posts.is_empty() => {
                let post = self.posts.swap_remove(choice % self.posts.len());
                self.land(post);
            }
            131..=180 => self.read_on(choice % 2, choice.is_multiple_of(5)),
            181..=200 => self.admit(choice),
            201..=215 => self.publish(&on),
            216..=225 => {
                if let Some(uid) = pick(&any, choice) {
                    self.pods.get_mut(uid).unwrap().ending = true;
                    self.changed(*uid);
                }
            }
            226..=236 => self.delete(choice),
            237..=239 if foreign => self.make(choice % 3 + 1, Some(on), None),
            240 => self.take_over(None, choice % 2 == 1),
            241 => self.take_over(frozen.then_some(choice), choice % 2 == 1),
            242 => self.delete_by_force(choice),
            243 if hostile => self.rewrite(choice),
            244 if hostile => {
                let of = pick(&any, choice / 2).copied();
                self.make(1, Some(on), of);
            }
            243..=245 => {
                if let Some(uid) = self.pick_alive(choice) {
                    self.changed(uid);
                }
            }
            // A container restarts: its node forgets it for a while.
            246..=255 => {
                let given = self.given.get_mut(&on).unwrap();
                let is_ours = |uid: &u128| self.pods.get(uid).is_some_and(|pod| !pod.foreign);
                let pods: Vec<u128> = given.keys().copied().filter(is_ours).collect();
                if let Some(uid) = pick(&pods, choice) {
                    given.remove(uid);
                }
            }
            _ => {}
        }
    }

    fn pick_alive(&self, choice: usize) -> Option<u128> {
        let alive: Vec<u128> = self.alive().collect();
        pick(&alive, choice).copied()
    }

    /// The author of a pod changes its annotation and its size.
    fn rewrite(&mut self, choice: usize) {
        let Some(uid) = self.pick_alive(choice) else { return };
        let pod = self.pods.get_mut(&uid).unwrap();
        pod.cpus = [None, Some(CpuSet::below(choice as u32 / 3 % CPUS + 1))][choice % 2].clone();
        (pod.request, pod.rewritten) = (choice / 5 % 9 + 1, true);
        self.changed(uid);
    }

    /// kubelet has ended it, and the API server forgets it.
    fn delete(&mut self, choice: usize) {
        let ending = self.pods.iter().filter(|(_, pod)| pod.ending || pod.failed);
        let ending: Vec<u128> = ending.map(|(uid, _)| *uid).collect();
        if let Some(uid) = pick(&ending, choice) {
            self.given.values_mut().for_each(|given| drop(given.remove(uid)));
            self.pods.remove(uid);
            self.logs[0].push(Event::PodGone(*uid));
        }
    }

    /// The API server forgets it at once, and its node a while later, if nobody was told that the node runs it.
    fn delete_by_force(&mut self, choice: usize) {
        let Some(uid) = self.pick_alive(choice) else { return };
        let pod = self.pods.remove(&uid).unwrap();
        self.logs[0].push(Event::PodGone(uid));
        let unseen = SETTLE_TIMEOUT - Duration::from_millis(1);
        let until = self.now + if pod.shown { Duration::ZERO } else { unseen };
        self.lingering.push((until, uid, pod));
        self.pass(Duration::ZERO);
    }

    fn read_all(&mut self) {
        for log in 0..2 {
            while self.read[log] < self.logs[log].len() {
                self.read_on(log, false);
            }
        }
    }

    /// Everything under way comes to its end.
    fn settle(&mut self) {
        while let Some(post) = self.posts.pop() {
            self.land(post);
        }
        self.read_all();
        while !self.tasks.is_empty() {
            self.step(0);
        }
        self.read_all();
        self.pass(SETTLE_TIMEOUT);
    }
}

fn pick<T>(all: &[T], choice: usize) -> Option<&T> {
    all.get(choice.checked_rem(all.len())?)
}
