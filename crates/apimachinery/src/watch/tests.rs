//! Frames written and parsed, with cuts at any byte.

use proptest::prelude::*;

use super::*;
use crate::json_text::quote;
use crate::resource_version::ResourceVersion;

fn decode(parts: &[&[u8]]) -> Vec<RawEvent> {
    let mut decoder = WatchDecoder::new();
    let mut events = Vec::new();
    for part in parts {
        decoder.push(part);
        events.extend(decoder.by_ref().map(Result::unwrap));
    }
    assert_eq!(decoder.buffered(), 0);
    events
}

/// Conformance: 3.G01
#[test]
fn frames_are_single_lines() {
    assert_eq!(
        frame(EventType::Added, &Bytes::from_static(b"{\"a\":1}")),
        "{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n"
    );
    assert_eq!(
        frame(EventType::Deleted, &Bytes::from_static(b"{\n\"a\": 1}\n")),
        "{\"type\":\"DELETED\",\"object\":{\"a\":1}}\n"
    );
}

#[test]
fn bookmarks_are_read() {
    let object =
        br#"{"kind":"Pod","metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}"#;
    let events = decode(&[&frame(EventType::Bookmark, &Bytes::from_static(object))]);
    let bookmark = Bookmark::parse(&events[0].object).unwrap();
    assert_eq!(bookmark.resource_version, ResourceVersion(5));
    assert!(bookmark.ends_initial_events());
    let plain = Bookmark::parse(br#"{"metadata":{"resourceVersion":"6","annotations":null}}"#).unwrap();
    assert!(!plain.ends_initial_events());
    assert!(Bookmark::parse(br#"{"metadata":{}}"#).is_err());
}

#[test]
fn errors_carry_a_status() {
    let status = Status::too_old_resource_version(ResourceVersion(1), ResourceVersion(9));
    let events = decode(&[&error_frame(&status)]);
    assert_eq!(events[0].event_type, EventType::Error);
    assert_eq!(Status::from_json(&events[0].object), Some(status));
}

#[test]
fn blank_lines_are_skipped() {
    let events = decode(&[b"\n\r\n{\"type\":\"ADDED\",\"object\":{}}\r\n\n"]);
    assert_eq!(
        events,
        [RawEvent {
            event_type: EventType::Added,
            object: Bytes::from_static(b"{}")
        }]
    );
}

#[test]
fn nothing_follows_an_error() {
    for bad in [
        "x\n",
        "{\"type\":\"NEW\",\"object\":{}}\n",
        "{\"type\":\"ADDED\"}\n",
        "[]\n",
    ] {
        let mut decoder = WatchDecoder::new();
        decoder.push(bad.as_bytes());
        decoder.push(b"{\"type\":\"ADDED\",\"object\":{}}\n");
        assert!(matches!(decoder.next(), Some(Err(DecodeError::Json(_)))), "{bad}");
        decoder.push(b"{\"type\":\"ADDED\",\"object\":{}}\n");
        assert!(decoder.next().is_none());
        assert_eq!(decoder.buffered(), 0);
    }
}

/// Both forms of a frame: as apiservers write it, which is split, and any other, which is parsed.
#[test]
fn every_form_of_a_frame_is_read() {
    let object = "{\"a\":{\"b\":\"}}\"}}";
    for line in [
        format!("{{\"type\":\"DELETED\",\"object\":{object}}}\n"),
        format!("{{ \"type\": \"DELETED\", \"object\": {object} }}\n"),
        format!("{{\"object\":{object},\"type\":\"DELETED\"}}\n"),
        format!("{{\"type\":\"DELETED\",\"object\":{object},\"x\":1}}\n"),
    ] {
        let expected = RawEvent {
            event_type: EventType::Deleted,
            object: Bytes::copy_from_slice(object.as_bytes()),
        };
        assert_eq!(decode(&[line.as_bytes()]), [expected], "{line}");
    }
}

/// The decoder leaves the text of an object to its parser, which refuses members behind the object, too.
#[test]
fn objects_that_are_no_json_are_refused_by_their_parser() {
    for object in ["{x}", "{\"metadata\":{\"resourceVersion\":\"1\"}},\"x\":{}"] {
        let events = decode(&[format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").as_bytes()]);
        assert!(Bookmark::parse(&events[0].object).is_err(), "{object}");
    }
}

/// Conformance: 2.84
#[test]
fn frames_are_limited() {
    let mut decoder = WatchDecoder::new();
    let part = vec![b' '; MAX_FRAME / 4];
    for _ in 0..4 {
        decoder.push(&part);
        assert!(decoder.next().is_none());
    }
    decoder.push(b"  ");
    assert!(matches!(decoder.next(), Some(Err(DecodeError::TooLong))));
    assert!(decoder.next().is_none());
}

#[test]
fn deep_nesting_is_survived() {
    let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    let events = decode(&[format!("{{\"type\":\"ADDED\",\"object\":{deep}}}\n").as_bytes()]);
    assert!(Bookmark::parse(&events[0].object).is_err());
    assert!(Bookmark::parse(format!(r#"{{"metadata":{{"resourceVersion":"1"}},"x":{deep}}}"#).as_bytes()).is_ok());
}

proptest! {
    #[test]
    fn cuts_do_not_matter(texts in proptest::collection::vec("[a-z \\n\"]{0,8}", 0..6), cut in 1_usize..20) {
        let objects: Vec<Bytes> = texts.iter().map(|text| quote(text).into()).collect();
        let stream: Vec<u8> = objects.iter().flat_map(|object| frame(EventType::Modified, object)).collect();
        let parts: Vec<&[u8]> = stream.chunks(cut).collect();
        let decoded: Vec<Bytes> = decode(&parts).into_iter().map(|event| event.object).collect();
        prop_assert_eq!(decoded, objects);
    }

    #[test]
    fn any_bytes_are_survived(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..32), 0..6)) {
        let mut decoder = WatchDecoder::new();
        for part in parts {
            decoder.push(&part);
            while decoder.next().is_some() {}
        }
    }
}
