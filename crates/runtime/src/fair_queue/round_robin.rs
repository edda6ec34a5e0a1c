//! Round robin over the queues of clients. Pure: the caller defines the entries.

use std::collections::{BTreeMap, VecDeque};

/// Bounded set of waiting entries of many clients.
pub(super) struct RoundRobin<T> {
    /// Waiting entries by client. No queue is empty.
    queues: BTreeMap<String, VecDeque<(Ticket, T)>>,
    /// Clients in the order in which they get their next turn: exactly the keys of `queues`.
    order: VecDeque<String>,
    len: usize,
    len_max: usize,
    next_ticket: Ticket,
}

/// Names one entry.
pub(super) type Ticket = u64;

/// Result of enqueueing an entry.
pub(super) enum Joined<T> {
    /// The entry waits.
    Waits(Ticket),
    /// The entry waits in place of another one, which is returned.
    InPlaceOf(Ticket, T),
    /// There is no room.
    Refused,
}

// === impl RoundRobin ===

impl<T> RoundRobin<T> {
    /// Room for `len_max` entries.
    pub(super) fn new(len_max: usize) -> Self {
        Self {
            queues: BTreeMap::new(),
            order: VecDeque::new(),
            len: 0,
            len_max,
            next_ticket: 0,
        }
    }

    /// Number of waiting entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends an entry to its client's queue. Without room, the last entry of the longest queue is evicted in favour
    /// of a client with a shorter queue.
    pub(super) fn join(&mut self, client: &str, entry: T) -> Joined<T> {
        if self.len < self.len_max {
            return Joined::Waits(self.push(client, entry));
        }
        match self.give_way(client) {
            Some(pushed_out) => Joined::InPlaceOf(self.push(client, entry), pushed_out),
            None => Joined::Refused,
        }
    }

    /// Removes the first entry of the queue whose turn it is; its client goes to the end of the order.
    pub(super) fn next(&mut self) -> Option<T> {
        let client = self.order.pop_front()?;
        let queue = self.queues.get_mut(&client)?;
        let (_, entry) = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&client);
        } else {
            self.order.push_back(client);
        }
        self.len -= 1;
        Some(entry)
    }

    /// Removes an entry that no longer waits; `None` if it is gone already.
    pub(super) fn leave(&mut self, client: &str, ticket: Ticket) -> Option<T> {
        let queue = self.queues.get_mut(client)?;
        let at = queue.iter().position(|(held, _)| *held == ticket)?;
        let (_, entry) = queue.remove(at)?;
        if queue.is_empty() {
            self.queues.remove(client);
            self.order.retain(|one| one != client);
        }
        self.len -= 1;
        Some(entry)
    }

    fn push(&mut self, client: &str, entry: T) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.len += 1;
        if !self.queues.contains_key(client) {
            self.order.push_back(client.to_owned());
        }
        let queue = self.queues.entry(client.to_owned()).or_default();
        queue.push_back((ticket, entry));
        ticket
    }

    fn give_way(&mut self, client: &str) -> Option<T> {
        let own = self.queues.get(client).map_or(0, VecDeque::len);
        let (longest, queue) = self.queues.iter().max_by_key(|(_, queue)| queue.len())?;
        if queue.len() <= own + 1 {
            return None;
        }
        let (longest, (last, _)) = (longest.clone(), queue.back()?);
        self.leave(&longest, *last)
    }
}

#[cfg(test)]
mod tests;
