//! A client of the simulated reads: an informer that lists once, then watches and resumes at its position.

use yurt_apimachinery::ResourceVersion;
use yurt_chaos_validate::history::{History, HistoryItem};
use yurt_collection::{ChangeKind, Collection, Delivery, Reader, Resumption};

use super::Mutation;
use super::cloud::mark;
use crate::random::Random;

/// Lines of a history that are printed after a violation.
const TOLD_MAX: usize = 200;

/// Server that a client reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadServer {
    Hub(usize),
    Coordinator,
}

pub(super) struct Client {
    pub(super) place: ReadServer,
    reader: Option<Reader>,
    /// Its position; `None` before its first list and after 410.
    position: Option<ResourceVersion>,
    /// Below this it may lack states that were already replaced by others when it was cut inside a catch-up. Its
    /// objects are not the whole state there, although nothing is lost.
    unsure_to: ResourceVersion,
    /// True if it got the beginning of a step and not its end.
    in_step: bool,
    /// True if it was cut there: if the step is a list's difference, the client is inside the gap of the list.
    cut_in_step: bool,
    /// Deliveries of the present generation.
    pub(super) history: History,
    /// Number of that generation.
    pub(super) generation: u64,
    /// Deliveries of the previous generations, each from its list on.
    pub(super) former: Vec<(u64, History)>,
    /// Set if it was resumed by a number of another generation.
    pub(super) violation: Option<String>,
    pub(super) lists: u32,
    /// Lists after such a cut.
    pub(super) excused: u32,
}

// === impl Client ===

impl Client {
    pub(super) fn new(place: ReadServer) -> Self {
        Self {
            place,
            reader: None,
            position: None,
            unsure_to: ResourceVersion::ZERO,
            in_step: false,
            cut_in_step: false,
            history: History::new(),
            generation: 0,
            former: Vec::new(),
            violation: None,
            lists: 0,
            excused: 0,
        }
    }

    /// True if everything up to `position` was delivered, with a bookmark there as the last delivery.
    pub(super) fn rests_at(&self, position: ResourceVersion) -> bool {
        self.history.last() == Some(&HistoryItem::Bookmark(position.0))
    }

    /// Cuts the connection at any point; the server is at `position`.
    pub(super) fn cut(&mut self, position: ResourceVersion) {
        if self.reader.take().is_some() {
            self.cut_in_step |= std::mem::take(&mut self.in_step);
            self.unsure_to = self.unsure_to.max(position);
        }
    }

    /// Its last deliveries for the object that a violation names.
    pub(super) fn told_of(&self, violation: &str) -> String {
        let named = violation.split([' ', ',', '@']).find(|word| word.starts_with("shop/"));
        let told = self.history.iter().enumerate().filter(|(_, seen)| match seen {
            HistoryItem::Put { key, .. } | HistoryItem::Gone { key, .. } => Some(key.as_str()) == named,
            HistoryItem::List(..) => true,
            HistoryItem::Watch(_) | HistoryItem::Bookmark(_) | HistoryItem::Error(_) => false,
        });
        let told: Vec<_> = told.map(|(index, seen)| format!("\n  {index}: {seen:?}")).collect();
        told[told.len().saturating_sub(TOLD_MAX)..].concat()
    }

    /// Reads at most `max` deliveries; with `cut` the connection breaks at a random one.
    pub(super) fn read(
        &mut self,
        held: &Collection,
        max: usize,
        cut: bool,
        mutation: Option<Mutation>,
        random: &mut Random,
    ) {
        if self.reader.is_none() {
            self.connect(held, mutation);
        }
        let Some(reader) = &mut self.reader else { return };
        let Ok(deliveries) = held.read(reader, max) else {
            // Listed immediately: a hub that is killed in between may be behind the client's state, which is
            // undetectable.
            return self.list(held);
        };
        let (at, is_quiet) = (reader.position(), deliveries.is_empty());
        let arrive = match cut {
            true => random.index(deliveries.len() + 1),
            false => deliveries.len(),
        };
        for delivery in &deliveries[..arrive] {
            self.take(delivery);
        }
        if cut {
            self.cut(held.position());
        } else if is_quiet && at == held.position() && at >= self.unsure_to {
            self.tell(at, HistoryItem::Bookmark(at.0));
            self.cut_in_step = false;
        }
    }

    fn connect(&mut self, held: &Collection, mutation: Option<Mutation>) {
        if !held.is_complete() {
            return;
        }
        let Some(position) = self.position else {
            return self.list(held);
        };
        // Over the wire it would get all objects: the same as a list.
        if held.resumption(position) != Ok(Resumption::ByNumber) {
            return self.list(held);
        }
        if held.generation() != self.generation {
            let (from, to) = (self.generation, held.generation());
            self.violation = Some(format!("resumed at {position} of generation {from} in generation {to}"));
        }
        match held.open(position) {
            Ok(_) if mutation == Some(Mutation::ResumeAtPresent) => self.reader = Some(held.follow()),
            Ok(reader) => self.reader = Some(reader.for_client()),
            Err(_) => self.list(held),
        }
    }

    fn list(&mut self, held: &Collection) {
        let snapshot = held.snapshot(None);
        let entry = |object: &yurt_apimachinery::Object| (object.key().to_string(), object.resource_version().0);
        let at = snapshot.position;
        self.lists += 1;
        // Up to H the history of a number is unknown: ahead of a copy that was killed, the client starts over.
        let starts_over = !held.high().is_zero() && self.position.is_some_and(|position| position > at);
        if held.generation() != self.generation || starts_over {
            self.former.push((self.generation, std::mem::take(&mut self.history)));
            (self.generation, self.unsure_to) = (held.generation(), ResourceVersion::ZERO);
        }
        self.in_step = false;
        self.excused += u32::from(std::mem::take(&mut self.cut_in_step));
        self.tell(
            at,
            HistoryItem::List(at.0, snapshot.objects.iter().map(entry).collect()),
        );
        // A list is a whole state, like the client's objects at a bookmark.
        self.tell(at, HistoryItem::Bookmark(at.0));
        self.reader = Some(snapshot.reader.for_client());
    }

    fn take(&mut self, delivery: &Delivery) {
        let (object, gone) = match delivery {
            Delivery::Exact(change) => (&change.object, change.kind == ChangeKind::Deleted),
            Delivery::Current { object, .. } => (object, false),
            Delivery::Gone(object) => (object, true),
            Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => {
                self.in_step = matches!(delivery, Delivery::DiffBegin(_));
                return;
            }
        };
        let (key, version) = (object.key().to_string(), object.resource_version().0);
        let seen = match gone {
            true => HistoryItem::Gone { key, version },
            false => HistoryItem::Put {
                key,
                version,
                mark: mark(object),
            },
        };
        self.tell(object.resource_version(), seen);
    }

    fn tell(&mut self, position: ResourceVersion, seen: HistoryItem) {
        self.position = Some(position);
        self.history.push(seen);
    }
}
