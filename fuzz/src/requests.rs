//! The first line and the headers of a request.

use yurt_apimachinery::{FieldSelector, LabelSelector, ListOptions, RequestInfo, kind};
use yurt_codec::negotiation::{Shape, negotiate};

/// The first half is a label selector, the second a field selector.
pub(crate) fn selectors(data: &[u8]) {
    let (labels, fields) = super::halves(data);
    if let Ok(text) = std::str::from_utf8(labels)
        && let Ok(selector) = LabelSelector::parse(text)
    {
        let again = LabelSelector::parse(text).expect("the same text");
        assert_eq!(selector.requirements(), again.requirements());
    }
    if let Ok(text) = std::str::from_utf8(fields)
        && let Ok(selector) = FieldSelector::parse(text)
    {
        assert_eq!(selector.is_everything(), selector.requirements().is_empty());
    }
}

/// The first half is a path, the second a query.
pub(crate) fn request_info(data: &[u8]) {
    let (path, query) = super::halves(data);
    let (Ok(path), Ok(query)) = (std::str::from_utf8(path), std::str::from_utf8(query)) else {
        return;
    };
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] {
        let Ok(info) = RequestInfo::parse(method, path, Some(query)) else {
            continue;
        };
        for segment in [&info.namespace, &info.name].into_iter().flatten() {
            assert!(
                !segment.contains('/') && segment != "." && segment != "..",
                "{segment:?} of {path:?}"
            );
        }
    }
    let pods = kind::find_kind("", "pods").expect("pods must be built in");
    for watch in [false, true] {
        let _ = ListOptions::parse(Some(query), watch, pods);
    }
}

/// The first half is an Accept header, the second a query.
pub(crate) fn negotiation(data: &[u8]) {
    let (accept, query) = super::halves(data);
    let (Ok(accept), Ok(query)) = (std::str::from_utf8(accept), std::str::from_utf8(query)) else {
        return;
    };
    for shape in [Shape::Object, Shape::List, Shape::Watch] {
        if let Err(status) = negotiate(Some(accept), shape, true, Some(query), Some("fuzz")) {
            assert!((400..500).contains(&status.code()), "{status:?}");
        }
    }
}
