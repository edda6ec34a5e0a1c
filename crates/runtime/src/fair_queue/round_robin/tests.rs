//! Random arrivals, departures and round_robin, compared with what is promised to each client.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Names of the clients.
const CLIENTS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// A request of this client arrives.
    Join(usize),
    /// The request that has waited n-th longest leaves.
    Leave(usize),
    /// A place is free.
    Next,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        // The first client is greedy.
        4 => Just(Step::Join(0)),
        3 => (1..CLIENTS).prop_map(Step::Join),
        2 => (0..8_usize).prop_map(Step::Leave),
        4 => Just(Step::Next),
    ];
    prop::collection::vec(step, 1..200)
}

/// Waiting requests, oldest first: client, ticket, round_robin of others since it became the first of its client.
type Model = Vec<(usize, Ticket, usize)>;

fn of(model: &Model, client: usize) -> usize {
    model.iter().filter(|(held, ..)| *held == client).count()
}

fn join(round_robin: &mut RoundRobin<usize>, model: &mut Model, len_max: usize, client: usize) {
    let waiting: BTreeMap<usize, usize> = (0..CLIENTS).map(|client| (client, of(model, client))).collect();
    let longest = waiting.values().copied().max().unwrap_or_default();
    match round_robin.join(&client.to_string(), client) {
        Joined::Waits(ticket) => {
            assert!(model.len() < len_max);
            model.push((client, ticket, 0));
        }
        Joined::InPlaceOf(ticket, loser) => {
            assert_eq!(model.len(), len_max);
            assert_eq!(waiting[&loser], longest, "the longest queue gives way");
            assert!(longest > waiting[&client] + 1, "only to one that stays shorter");
            let last = model.iter().rposition(|(held, ..)| *held == loser).unwrap();
            model.remove(last);
            model.push((client, ticket, 0));
        }
        Joined::Refused => {
            assert_eq!(model.len(), len_max);
            assert!(longest <= waiting[&client] + 1, "no queue is much longer");
        }
    }
}

fn next(round_robin: &mut RoundRobin<usize>, model: &mut Model) {
    let Some(served) = round_robin.next() else {
        assert!(model.is_empty());
        return;
    };
    let first = model.iter().position(|(held, ..)| *held == served).unwrap();
    model.remove(first);
    // The first request of every other client has seen one more turn of another client.
    for client in (0..CLIENTS).filter(|client| *client != served) {
        if let Some((_, _, passed)) = model.iter_mut().find(|(held, ..)| *held == client) {
            *passed += 1;
            assert!(*passed < CLIENTS, "every other client has one turn at most before it");
        }
    }
}

proptest! {
    /// Conformance: 6.31, 6.33
    #[test]
    fn no_client_starves_another_and_the_queue_is_bounded(len_max in 0..12_usize, steps in steps()) {
        let mut round_robin = RoundRobin::new(len_max);
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Join(client) => join(&mut round_robin, &mut model, len_max, client),
                Step::Leave(at) if at < model.len() => {
                    let (client, ticket, _) = model.remove(at);
                    assert_eq!(round_robin.leave(&client.to_string(), ticket), Some(client));
                    assert_eq!(round_robin.leave(&client.to_string(), ticket), None);
                }
                Step::Leave(_) => {}
                Step::Next => next(&mut round_robin, &mut model),
            }
            assert_eq!(round_robin.len(), model.len());
            assert!(round_robin.len() <= len_max);
            assert!(round_robin.queues.values().all(|queue| !queue.is_empty()));
            let mut order: Vec<&String> = round_robin.order.iter().collect();
            order.sort_unstable();
            assert!(order.into_iter().eq(round_robin.queues.keys()));
        }
        // All requests that stayed are served.
        while !model.is_empty() {
            next(&mut round_robin, &mut model);
        }
        assert!(round_robin.next().is_none());
    }
}
