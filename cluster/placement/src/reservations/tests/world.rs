//! Random worlds: an API server, two nodes that admit by themselves, one writer after the other, of which the former ones wake up
//! at any time in the midst of a bind, watches that are late, answers that are lost, other schedulers, authors who change their pods or let them pass for
//! others.

mod properties;

use std::collections::BTreeMap;

use super::*;

const NODES: [&str; 2] = ["a", "b"];
const CPUS: u32 = 8;

#[derive(Debug, Clone)]
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
    Claims(NodeName, Version, Vec<Claim>),
}

/// A bind, as far as it has come.
#[derive(Debug)]
struct Task {
    ticket: Ticket,
    cpus: Option<CpuSet>,
    rewrite: Option<Rewrite>,
    written: bool,
    /// Its writer is the one that runs.
    awake: bool,
}

#[derive(Debug)]
struct Post {
    pod: u128,
    node: NodeName,
    version: Version,
    cpus: Option<CpuSet>,
}

struct World {
    clock: Version,
    now: Moment,
    pods: BTreeMap<u128, TruePod>,
    /// What each node gave.
    given: BTreeMap<NodeName, BTreeMap<u128, CpuSet>>,
    objects: BTreeMap<NodeName, (Version, Plain)>,
    claims: BTreeMap<NodeName, (Version, Vec<Claim>)>,
    /// Events of pods, objects and claim objects; how far the writer has read each.
    logs: [Vec<Event>; 3],
    read: [usize; 3],
    /// Where the writer began to read.
    from: [usize; 3],
    writer: Reservations<Lowest>,
    /// Writers so far. Each has a process number of its own, also if nothing changed in the API server between two of them.
    writers: u64,
    tasks: Vec<Task>,
    posts: Vec<Post>,
    pods_made: u128,
    binds: usize,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            clock: 0,
            now: seconds(0),
            pods: BTreeMap::new(),
            given: NODES.iter().map(|name| (node(name), BTreeMap::new())).collect(),
            objects: BTreeMap::new(),
            claims: BTreeMap::new(),
            logs: Default::default(),
            read: [0; 3],
            from: [0; 3],
            writer: Reservations::new(Lowest::default(), 0),
            writers: 0,
            tasks: Vec::new(),
            posts: Vec::new(),
            pods_made: 0,
            binds: 0,
        };
        NODES.iter().for_each(|name| world.publish(&node(name)));
        world.take_over();
        world
    }

    fn tick(&mut self) -> Version {
        self.clock += 1;
        self.clock
    }

    fn changed(&mut self, uid: u128) {
        let version = self.tick();
        let pod = self.pods.get_mut(&uid).unwrap();
        pod.version = version;
        let event = if pod.failed {
            Event::PodGone(uid)
        } else {
            Event::Pod(uid, pod.clone())
        };
        self.logs[0].push(event);
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
            cpus: None,
            told: None,
            rewritten: false,
            mirror_of,
            ending: false,
            failed: false,
            admitted: false,
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
            Event::Claims(on, version, claims) => {
                writer.claims_changed(on, *version, claims, now);
            }
        }
    }

    /// The next writer reads everything; the former one's binds go on where they were, whenever it wakes up.
    fn take_over(&mut self) {
        self.writer = self.fresh();
        self.read = [0, 1, 2].map(|log: usize| self.logs[log].len());
        self.from = self.read;
        self.tasks.iter_mut().for_each(|task| task.awake = false);
    }

    fn fresh(&mut self) -> Reservations<Lowest> {
        self.writers += 1;
        let mut writer = Reservations::new(Lowest::default(), self.writers);
        let claims = self
            .claims
            .iter()
            .map(|(on, (version, all))| Event::Claims(on.clone(), *version, all.clone()));
        let pods = self
            .pods
            .iter()
            .filter(|(_, pod)| !pod.failed)
            .map(|(uid, pod)| Event::Pod(*uid, pod.clone()));
        let objects = self
            .objects
            .iter()
            .map(|(on, (version, all))| Event::Object(on.clone(), *version, all.clone()));
        for event in claims.chain(pods).chain(objects) {
            Self::hear(&mut writer, &event, self.now);
        }
        let listed = self
            .pods
            .iter()
            .filter(|(_, pod)| !pod.failed)
            .map(|(uid, _)| super::uid(*uid))
            .collect();
        writer.pods_listed(&listed, self.clock, self.now);
        writer.advance(self.now + SETTLE_TIMEOUT);
        writer
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
        let waiting: Vec<u128> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.node.is_none())
            .map(|(uid, _)| *uid)
            .collect();
        let Some(uid) = pick(&waiting, choice) else { return };
        let truth = &self.pods[uid];
        let version = [truth.made, truth.version][choice % 2];
        let on = node(NODES[choice / 3 % 2]);
        if let Ok(begun) = self
            .writer
            .start_bind(asked(*uid, version, truth.request), &on, self.now)
        {
            self.tasks.push(Task {
                ticket: begun.ticket,
                cpus: begun.cpus,
                rewrite: None,
                written: false,
                awake: true,
            });
        }
    }

    /// One step of a bind; how it fares after the last one is by choice.
    fn step(&mut self, choice: usize) {
        if self.tasks.is_empty() {
            return;
        }
        let mut task = self.tasks.swap_remove(choice % self.tasks.len());
        let on = task.ticket.node.clone();
        if task.written {
            self.post(task, choice / 7);
            return;
        }
        let Some(rewrite) = task.rewrite.take() else {
            // A writer that wakes up is no leader any more, and composes nothing.
            if !task.awake {
                return;
            }
            match self.writer.rewrite(&task.ticket) {
                Some(rewrite) => self.tasks.push(Task {
                    rewrite: Some(rewrite),
                    ..task
                }),
                None => self.writer.bind_failed(&task.ticket),
            }
            return;
        };
        let current = self.claims.get(&on).map(|(version, _)| *version);
        if current != rewrite.base {
            if task.awake {
                let (version, claims) = self.claims[&on].clone();
                self.writer.claims_changed(&on, version, &claims, self.now);
                self.writer.bind_failed(&task.ticket);
            }
            return;
        }
        let version = self.tick();
        self.claims.insert(on.clone(), (version, rewrite.claims.clone()));
        self.logs[2].push(Event::Claims(on.clone(), version, rewrite.claims));
        if task.awake {
            self.writer.claims_written(&on, version);
        }
        self.tasks.push(Task { written: true, ..task });
    }

    fn post(&mut self, task: Task, choice: usize) {
        let post = Post {
            pod: number(task.ticket.pod),
            node: task.ticket.node.clone(),
            version: task.ticket.version,
            cpus: task.cpus,
        };
        match choice % 3 {
            0 => {
                let bound = self.land(post);
                if task.awake && bound {
                    self.writer.bind_succeeded(&task.ticket, self.now);
                } else if task.awake {
                    // A binding of an earlier attempt may have been late, so the pod is read.
                    self.read_pod(number(task.ticket.pod));
                    self.writer.bind_failed(&task.ticket);
                }
            }
            1 => {
                self.land(post);
            }
            _ => self.posts.push(post),
        }
        if task.awake && !choice.is_multiple_of(3) {
            self.writer.bind_undecided(&task.ticket, self.now);
        }
    }

    fn read_pod(&mut self, uid: u128) {
        let event = match self.pods.get(&uid) {
            Some(pod) if !pod.failed => Event::Pod(uid, pod.clone()),
            _ => Event::PodGone(uid),
        };
        Self::hear(&mut self.writer, &event, self.now);
    }

    /// The API server's rule: the version that is demanded, and not bound.
    fn land(&mut self, post: Post) -> bool {
        let Some(pod) = self.pods.get_mut(&post.pod) else {
            return false;
        };
        if pod.version != post.version || pod.node.is_some() || pod.ending {
            return false;
        }
        (pod.node, pod.cpus) = (Some(post.node.clone()), post.cpus.clone());
        (pod.told, pod.rewritten) = (post.cpus.clone(), false);
        self.changed(post.pod);
        self.binds += 1;
        let own = post.cpus.unwrap_or_default();
        let others = self.pods.iter().filter(|(uid, pod)| {
            // Of a pod that its author rewrote a later writer knows nothing else.
            let is_honest = !pod.failed && !pod.foreign && !pod.rewritten;
            **uid != post.pod && is_honest && pod.node.as_ref() == Some(&post.node)
        });
        for (uid, other) in others {
            let theirs = other.told.clone().unwrap_or_default();
            assert!(
                own.is_disjoint(&theirs),
                "pod {} has {own}, pod {uid} {theirs} on {}",
                post.pod,
                post.node
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
                let others = self
                    .pods
                    .values()
                    .any(|other| (other.foreign || other.rewritten) && other.node.as_ref() == Some(&on));
                assert!(others, "pod {uid} was refused on {on} without other schedulers");
                self.pods.get_mut(uid).unwrap().failed = true;
                self.changed(*uid);
            }
        }
    }

    fn act(&mut self, action: u8, choice: usize, foreign: bool, hostile: bool) {
        self.now += Duration::from_millis(700);
        self.writer.advance(self.now);
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
            131..=180 => self.read_on(choice % 3, choice.is_multiple_of(5)),
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
            240..=241 => self.take_over(),
            243 if hostile => self.rewrite(choice),
            244 if hostile => {
                let of = pick(&any, choice / 2).copied();
                self.make(1, Some(on), of);
            }
            242..=245 => {
                let pods: Vec<u128> = self
                    .pods
                    .iter()
                    .filter(|(_, pod)| !pod.failed)
                    .map(|(uid, _)| *uid)
                    .collect();
                if let Some(uid) = pick(&pods, choice) {
                    self.changed(*uid);
                }
            }
            246..=250 => self.fence(),
            // A container restarts: its node forgets it for a while.
            251..=255 => {
                let given = self.given.get_mut(&on).unwrap();
                let pods: Vec<u128> = given.keys().copied().filter(|uid| !self.pods[uid].foreign).collect();
                if let Some(uid) = pick(&pods, choice) {
                    given.remove(uid);
                }
            }
            _ => {}
        }
    }

    /// The author of a pod changes its annotation and its size.
    fn rewrite(&mut self, choice: usize) {
        let alive: Vec<u128> = self
            .pods
            .iter()
            .filter(|(_, pod)| !pod.failed)
            .map(|(uid, _)| *uid)
            .collect();
        let Some(uid) = pick(&alive, choice) else { return };
        let pod = self.pods.get_mut(uid).unwrap();
        pod.cpus = [None, Some(CpuSet::below(choice as u32 / 3 % CPUS + 1))][choice % 2].clone();
        (pod.request, pod.rewritten) = (choice / 5 % 9 + 1, true);
        self.changed(*uid);
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

    /// What is not decided is read, and after a while changed.
    fn fence(&mut self) {
        for (uid, _) in self.writer.undecided() {
            self.read_pod(number(uid));
        }
        for (uid, _) in self.writer.to_fence(self.now) {
            match self.pods.get(&number(uid)) {
                Some(pod) if pod.node.is_none() => self.changed(number(uid)),
                _ => {}
            }
        }
    }

    fn read_all(&mut self) {
        for log in 0..3 {
            while self.read[log] < self.logs[log].len() {
                self.read_on(log, false);
            }
        }
    }

    /// Everything under way comes to its end.
    fn settle(&mut self) {
        while !self.tasks.is_empty() {
            self.step(0);
        }
        while let Some(post) = self.posts.pop() {
            self.land(post);
        }
        self.read_all();
        self.now += FENCE_TIMEOUT;
        self.fence();
        self.read_all();
        self.now += SETTLE_TIMEOUT;
        self.writer.advance(self.now);
    }
}

fn pick<T>(all: &[T], choice: usize) -> Option<&T> {
    all.get(choice.checked_rem(all.len())?)
}
