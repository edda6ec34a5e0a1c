//! Drafts against a server that changes and compacts both its lists and its watch history. The link may break at any
//! moment.

use proptest::prelude::*;
use yurt_apimachinery::kind::find_kind;

use super::*;

/// Keys of the model.
const KEYS: u8 = 12;

fn kind() -> &'static ResourceKind {
    find_kind("", "services").unwrap()
}

fn object(key: u8, at: u64) -> Object {
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"namespace":"x","name":"s{key:02}","uid":"u","resourceVersion":"{at}"}}}}"#
    );
    Object::parse(Bytes::from(json), kind()).unwrap()
}

/// A server: the whole log of changes of each key, and its compacted revision.
#[derive(Debug)]
struct Server {
    /// (RV, key, exists afterwards), by RV.
    log: Vec<(u64, u8, bool)>,
    now: u64,
    /// Compacted revision: states below it cannot be listed any more.
    compacted: u64,
}

impl Server {
    fn change(&mut self, key: u8, exists: bool) {
        self.now += 1;
        let existed = self.state(self.now).contains_key(&key);
        if exists || existed {
            self.log.push((self.now, key, exists));
        }
    }

    fn state(&self, at: u64) -> BTreeMap<u8, u64> {
        let mut state = BTreeMap::new();
        for (rv, key, exists) in self.log.iter().filter(|entry| entry.0 <= at) {
            if *exists {
                state.insert(*key, *rv);
            } else {
                state.remove(key);
            }
        }
        state
    }

    /// Returns up to `limit` objects from `start` on; `Err` holds the token for the rest at the current state.
    fn page(&self, token: Option<&str>, limit: usize) -> Result<Page, String> {
        let (at, start) = match token.and_then(|token| token.split_once(':')) {
            None => (self.now, 0),
            Some(("-1", start)) => (self.now, start.parse().unwrap()),
            Some((at, start)) => {
                let at: u64 = at.parse().unwrap();
                if at < self.compacted {
                    return Err(format!("-1:{start}"));
                }
                (at, start.parse().unwrap())
            }
        };
        let rest: Vec<(u8, u64)> = self.state(at).into_iter().filter(|(key, _)| *key >= start).collect();
        let items: Vec<Object> = rest.iter().take(limit).map(|(key, rv)| object(*key, *rv)).collect();
        let more = rest.get(limit).map(|_| format!("{at}:{}", rest[limit - 1].0 + 1));
        Ok(Page {
            items,
            bytes: 0,
            rest: None,
            at: ResourceVersion(at),
            token: more,
            generation: None,
        })
    }
}

#[derive(Clone, Debug)]
enum Move {
    /// A key is written or deleted.
    Change(u8, bool),
    /// The server compacts all states but the present one.
    Compact,
    /// The next page arrives.
    Page(usize),
    /// This many changes arrive, or a bookmark when there are fewer.
    Changes(usize),
    /// The hub is killed and starts again.
    Restart,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (0..KEYS, any::<bool>()).prop_map(|(key, exists)| Move::Change(key, exists)),
        1 => Just(Move::Compact),
        4 => (1..5_usize).prop_map(Move::Page),
        2 => (1..4_usize).prop_map(Move::Changes),
        1 => Just(Move::Restart),
    ];
    proptest::collection::vec(one, 0..60)
}

fn pull_page(server: &Server, draft: &mut Option<PartialList>, limit: usize) {
    let Some(known) = draft else {
        *draft = Some(PartialList::begin(server.page(None, limit).unwrap(), ResourceVersion::ZERO).unwrap());
        return;
    };
    let Some(token) = known.next().map(str::to_owned) else {
        return;
    };
    match server.page(Some(&token), limit) {
        Ok(page) => known.take_page(page).unwrap(),
        Err(fresh) => known.take_expired(Some(&fresh)).unwrap(),
    }
}

fn pull_changes(server: &Server, draft: &mut PartialList, most: usize) {
    let from = draft.watched().0;
    let news: Vec<_> = server.log.iter().filter(|entry| entry.0 > from).take(most).collect();
    for (rv, key, exists) in &news {
        let event = if *exists {
            EventType::Modified
        } else {
            EventType::Deleted
        };
        draft.take_event(event, object(*key, *rv));
    }
    if news.len() < most {
        draft.advance(ResourceVersion(server.now));
    }
}

/// The disk: everything saved so far.
#[derive(Default)]
struct Disk(BTreeMap<String, Bytes>, String);

impl Disk {
    fn save(&mut self, draft: &mut PartialList) {
        self.0.extend(draft.take_unsaved(false));
        self.1 = draft.about();
    }

    fn load(&self) -> PartialList {
        let rows = self.0.clone().into_iter().collect();
        PartialList::restore(self.1.as_bytes(), rows, kind()).unwrap()
    }
}

proptest! {
    #[test]
    fn finished_draft_is_one_state_of_the_server(moves in moves()) {
        let mut server = Server { log: Vec::new(), now: 100, compacted: 0 };
        (0..KEYS).for_each(|key| server.change(key, true));
        let (mut draft, mut disk) = (None, Disk::default());
        for one in moves {
            match one {
                Move::Change(key, exists) => server.change(key, exists),
                Move::Compact => server.compacted = server.now,
                Move::Page(limit) => pull_page(&server, &mut draft, limit),
                Move::Changes(most) => {
                    if let Some(draft) = &mut draft {
                        pull_changes(&server, draft, most);
                    }
                }
                Move::Restart => {
                    if let Some(draft) = &mut draft {
                        disk.save(draft);
                        *draft = disk.load();
                    }
                }
            }
            if draft.as_ref().is_some_and(|draft| draft.next().is_none() && !draft.needs_changes(ResourceVersion::ZERO)) {
                break;
            }
        }
        // From here on the link holds.
        while draft.as_ref().is_none_or(|draft| draft.next().is_some()) {
            pull_page(&server, &mut draft, 3);
        }
        let mut draft = draft.unwrap();
        if draft.needs_changes(ResourceVersion::ZERO) {
            pull_changes(&server, &mut draft, usize::MAX);
        }
        prop_assert!(!draft.needs_changes(ResourceVersion::ZERO));
        let (objects, at) = draft.into_list();
        let listed: BTreeMap<_, _> = objects.iter().map(|o| (o.name().to_owned(), o.resource_version().0)).collect();
        let truth: BTreeMap<_, _> = server.state(at.0).into_iter().map(|(key, rv)| (format!("s{key:02}"), rv)).collect();
        prop_assert_eq!(listed, truth);
    }
}

#[test]
fn pages_of_several_states_are_no_list_without_the_changes_between() {
    let mut server = Server {
        log: Vec::new(),
        now: 100,
        compacted: 0,
    };
    (0..4).for_each(|key| server.change(key, true));
    let mut draft = None;
    pull_page(&server, &mut draft, 2);
    server.change(0, false);
    server.compacted = server.now;
    pull_page(&server, &mut draft, 2);
    pull_page(&server, &mut draft, 2);
    let draft = draft.unwrap();
    assert!(draft.next().is_none() && draft.needs_changes(ResourceVersion::ZERO));
}

#[test]
fn what_is_held_may_move_on_but_a_source_that_went_back_is_not_waited_for() {
    let page = |at| Page {
        items: vec![object(1, 5)],
        bytes: 0,
        rest: None,
        at: ResourceVersion(at),
        token: None,
        generation: None,
    };
    let draft = PartialList::begin(page(10), ResourceVersion(8)).unwrap();
    assert!(!draft.needs_changes(ResourceVersion(10)));
    assert!(draft.needs_changes(ResourceVersion(12)), "another source was faster");
    let behind = PartialList::begin(page(10), ResourceVersion(11)).unwrap();
    assert!(!behind.needs_changes(ResourceVersion(11)));
}

#[test]
fn unfit_pages_are_refused() {
    let page = |at, generation| Page {
        items: Vec::new(),
        bytes: 0,
        rest: None,
        at: ResourceVersion(at),
        token: Some("t".into()),
        generation,
    };
    let mut draft = PartialList::begin(page(10, Some(1)), ResourceVersion::ZERO).unwrap();
    assert_eq!(draft.take_page(page(10, Some(2))), Err(Unfit::Generation));
    let (at, newest) = (ResourceVersion(9), ResourceVersion(10));
    assert_eq!(draft.take_page(page(9, Some(1))), Err(Unfit::Behind { at, newest }));
    assert_eq!(draft.take_expired(None), Err(Unfit::NoToken));
    assert_eq!(draft.take_expired(Some("later")), Ok(()));
    assert_eq!(draft.next(), Some("later"));
}
