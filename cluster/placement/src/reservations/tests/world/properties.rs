//! What holds in every world.

use proptest::prelude::*;

use super::*;
use crate::simulated_cluster::random::Random;

fn all_held(writer: &Reservations<Lowest>) -> Vec<Vec<(u128, String)>> {
    NODES.iter().map(|on| held(writer, on)).collect()
}

/// The same without the CPUs of pods that their authors rewrote.
fn known_by_all(world: &World, writer: &Reservations<Lowest>) -> Vec<Vec<(u128, String)>> {
    let mut held = all_held(writer);
    for (uid, cpus) in held.iter_mut().flatten() {
        if world.pods.get(uid).is_some_and(|pod| pod.rewritten) {
            cpus.clear();
        }
    }
    held
}

fn run(acts: &[(u8, usize)], troubles: [bool; 3]) -> World {
    let mut world = World::new();
    for (action, choice) in acts {
        world.act(*action, *choice, troubles);
    }
    world.settle();

    assert_eq!(world.writer.counts(world.now).binding, 0, "every bind is decided");
    let fresh = world.fresh();
    assert_eq!(known_by_all(&world, &world.writer), known_by_all(&world, &fresh));
    for on in NODES {
        let shown = &world.objects[on].1.pods;
        let is_unseen = |uid: &u128| {
            let pod = &world.pods[uid];
            pod.node.as_deref() == Some(on) && !shown.contains(&super::uid(pod.mirror_of.unwrap_or(*uid)))
        };
        let unseen: Vec<u128> = world.alive().filter(is_unseen).collect();
        let holds: Vec<u128> = held(&world.writer, on).into_iter().map(|(uid, _)| uid).collect();
        assert_eq!(holds, unseen, "{on}: who holds, and who is bound and unseen");
    }

    // The end of all: nothing is held for anybody.
    let all: Vec<u128> = world.pods.keys().copied().collect();
    for uid in all {
        world.pods.get_mut(&uid).unwrap().ending = true;
        world.delete(0);
    }
    world.settle();
    NODES.iter().for_each(|on| world.publish(&node(on)));
    world.settle();
    assert_eq!(all_held(&world.writer), [[], []], "no claim leaks");
    assert_eq!(world.writer.counts(world.now), ReservationCounts::default());
    world.now += UID_RETENTION;
    world.writer.advance(world.now);
    assert!(world.writer.pods.is_empty() && world.writer.timers.is_empty());
    world
}

proptest! {
    #[test]
    fn never_claimed_twice_and_never_leaked(acts in prop::collection::vec((any::<u8>(), any::<usize>()), 0..600), troubles: [bool; 3]) {
        run(&acts, troubles);
    }
}

/// The worlds are not idle.
#[test]
fn binds_happen() {
    let mut random = Random::new(2);
    let mut next = || (random.next() >> 33) as usize;
    let acts: Vec<(u8, usize)> = (0..8000).map(|_| (next() as u8, next())).collect();
    let binds = run(&acts, [false; 3]).binds;
    assert!(binds > 40, "{binds} binds");
    assert!(!run(&acts, [false, false, true]).late.is_empty());
}
