//! JSON patches that apply, that must fail, and malicious ones.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn json_patch(mut document: Value, patch: &Value) -> Result<Value, u16> {
    apply_json_patch(&mut document, patch.to_string().as_bytes())
        .map(|()| document)
        .map_err(|status| status.code())
}

#[test]
fn operations_apply_in_order() {
    let patch = json!([
        {"op": "test", "path": "/a", "value": 1},
        {"op": "replace", "path": "/a", "value": 2},
        {"op": "add", "path": "/l/-", "value": "x"},
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "move", "from": "/b", "path": "/c~1d"},
        {"op": "remove", "path": "/l/0"},
    ]);
    assert_eq!(
        json_patch(json!({"a": 1, "l": ["y"]}), &patch),
        Ok(json!({"a": 2, "l": ["x"], "c/d": 2}))
    );
    assert_eq!(json_patch(json!({}), &json!([])), Ok(json!({})));
}

#[test]
fn negative_index_counts_from_the_end_of_the_list() {
    let list = || json!({"l": [1, 2, 3], "m": [{"-1": "a"}]});
    for (patch, result) in [
        (json!({"op": "add", "path": "/l/-1", "value": 9}), json!([1, 2, 3, 9])),
        (json!({"op": "add", "path": "/l/-4", "value": 9}), json!([9, 1, 2, 3])),
        (json!({"op": "replace", "path": "/l/-1", "value": 9}), json!([1, 2, 9])),
        (json!({"op": "remove", "path": "/l/-3"}), json!([2, 3])),
        (json!({"op": "test", "path": "/l/-2", "value": 2}), json!([1, 2, 3])),
        (
            json!({"op": "copy", "from": "/l/-1", "path": "/l/-2"}),
            json!([1, 2, 3, 3]),
        ),
        (json!({"op": "move", "from": "/l/0", "path": "/l/-1"}), json!([2, 3, 1])),
        (
            json!({"op": "move", "from": "/l/-1", "path": "/l/-3"}),
            json!([3, 1, 2]),
        ),
        (
            json!({"op": "copy", "from": "/m/-1/-1", "path": "/l/0"}),
            json!(["a", 1, 2, 3]),
        ),
    ] {
        let patched = json_patch(list(), &json!([patch.clone()])).map(|mut document| document["l"].take());
        assert_eq!(patched, Ok(result), "{patch}");
    }
    for path in ["/l/-5", "/m/-1/-2", "/z/-1"] {
        let patch = json!([{"op": "remove", "path": path}]);
        assert_eq!(json_patch(list(), &patch), Err(422), "{path}");
    }
}

#[test]
fn member_that_is_not_there_equals_null() {
    for document in [json!({}), json!({"a": null})] {
        let test = |value| json!([{"op": "test", "path": "/a", "value": value}]);
        assert_eq!(json_patch(document.clone(), &test(Value::Null)), Ok(document.clone()));
        assert_eq!(json_patch(document, &test(json!(1))), Err(422));
    }
    for operation in ["add", "replace", "test"] {
        let without_value = json!([{"op": operation, "path": "/a"}]);
        let patched = json_patch(json!({"a": null}), &without_value);
        assert_eq!(patched, Ok(json!({"a": null})), "{operation}");
        assert_eq!(
            json_patch(json!({}), &json!([{"op": operation, "path": ""}])),
            Err(422),
            "{operation}"
        );
    }
    for path in ["/a/b", "/l/0"] {
        let test = json!([{"op": "test", "path": path, "value": null}]);
        assert_eq!(json_patch(json!({"l": []}), &test), Err(422), "{path}");
    }
}

/// Indexes are numbers of Go, signs and leading zeros included.
#[test]
fn indexes_are_numbers_of_go() {
    for (patch, result) in [
        (
            json!({"op": "replace", "path": "/l/01", "value": 9}),
            Ok(json!([1, 9, 3])),
        ),
        (
            json!({"op": "add", "path": "/l/+1", "value": 9}),
            Ok(json!([1, 9, 2, 3])),
        ),
        (json!({"op": "remove", "path": "/l/-0"}), Ok(json!([2, 3]))),
        (
            json!({"op": "test", "path": "/l/-03", "value": 1}),
            Ok(json!([1, 2, 3])),
        ),
        (
            json!({"op": "add", "path": "/l/3", "value": 9}),
            Ok(json!([1, 2, 3, 9])),
        ),
        (json!({"op": "add", "path": "/l/4", "value": 9}), Err(422)),
        (json!({"op": "replace", "path": "/l/3", "value": 9}), Err(422)),
        (json!({"op": "replace", "path": "/l/-", "value": 9}), Err(422)),
        (json!({"op": "remove", "path": "/l/-"}), Err(422)),
        (json!({"op": "add", "path": "/l/1_0", "value": 9}), Err(422)),
        (json!({"op": "add", "path": "/l/", "value": 9}), Err(422)),
    ] {
        let patched = json_patch(json!({"l": [1, 2, 3]}), &json!([patch.clone()]));
        assert_eq!(patched.map(|mut document| document["l"].take()), result, "{patch}");
    }
}

/// A path without a slash names nothing. Text before the first slash is not looked at.
#[test]
fn paths_begin_at_their_first_slash() {
    let document = || json!({"a": {"b": 1}, "": {"": 2}, "~2": 3, "~1": 4});
    for (path, found) in [
        ("/a/b", Some(1)),
        ("a/b", None),
        ("x/a/b", Some(1)),
        ("a", None),
        ("//", Some(2)),
        ("/~2", Some(3)),
        ("/~01", Some(4)),
    ] {
        let patch = json!([{"op": "test", "path": path, "value": found}]);
        let patched = json_patch(document(), &patch).map(drop);
        // A member of an object that is not there equals null.
        let wanted = if found.is_none() && !path.contains('/') {
            Err(422)
        } else {
            Ok(())
        };
        assert_eq!(patched, wanted, "{path}");
    }
}

#[test]
fn copy_of_a_member_that_is_not_there_is_null() {
    let copy = |from: &str| json!([{"op": "copy", "from": from, "path": "/b"}]);
    let document = || json!({"a": 1, "l": []});
    assert_eq!(
        json_patch(document(), &copy("/z")),
        Ok(json!({"a": 1, "b": null, "l": []}))
    );
    for from in ["/z/z", "/l/0", "/a/z", "", "z"] {
        assert_eq!(json_patch(document(), &copy(from)), Err(422), "{from}");
    }
    let moved = json!([{"op": "move", "from": "/z", "path": "/b"}]);
    assert_eq!(json_patch(document(), &moved), Err(422));
}

/// `replace` and `test` know the whole document, no other operation does.
#[test]
fn whole_document_can_be_replaced_and_tested() {
    let document = || json!({"a": 1});
    let patched = |operation| json_patch(document(), &json!([operation]));
    let whole = json!({"b": 2});
    for operation in ["add", "remove", "move", "copy"] {
        let patch = json!({"op": operation, "path": "", "from": "", "value": whole});
        assert_eq!(patched(patch), Err(422), "{operation}");
    }
    assert_eq!(
        patched(json!({"op": "replace", "path": "", "value": whole})),
        Ok(whole.clone())
    );
    assert_eq!(
        patched(json!({"op": "test", "path": "", "value": document()})),
        Ok(document())
    );
    assert_eq!(patched(json!({"op": "test", "path": "", "value": whole})), Err(422));
    for value in [json!(1), json!("text"), Value::Null] {
        let patch = json!({"op": "replace", "path": "", "value": value});
        assert_eq!(patched(patch), Err(422), "{value}");
    }
}

/// Conformance: 3.C01
#[test]
fn failures_have_their_codes() {
    for (patch, code) in [
        (json!({}), 400),
        (json!([1]), 400),
        (json!([{"op": "test", "path": "/a", "value": 2}]), 422),
        (json!([{"op": "remove", "path": "/z"}]), 422),
        (json!([{"op": "frobnicate", "path": "/a"}]), 422),
        (json!([{"op": "add", "path": "no-slash", "value": 1}]), 422),
        (json!([{"op": "add", "path": "/a/b", "value": 1}]), 422),
    ] {
        assert_eq!(json_patch(json!({"a": 1}), &patch), Err(code), "{patch}");
    }
    let mut document = json!({});
    assert_eq!(apply_json_patch(&mut document, b"[").unwrap_err().code(), 400);
    let status = apply_json_patch(&mut document, br#"[{"op":"remove","path":"/z"}]"#).unwrap_err();
    assert_eq!(
        status.message(),
        "the server rejected our request due to an error in our request"
    );
    assert!(status.is_invalid());
}

/// Conformance: 2.82
#[test]
fn operations_are_counted() {
    let patch = |count| Value::from(vec![json!({"op": "test", "path": "/a", "value": 1}); count]);
    assert!(json_patch(json!({"a": 1}), &patch(MAX_OPERATIONS)).is_ok());
    let mut document = json!({"a": 1});
    let text = patch(MAX_OPERATIONS + 1).to_string();
    assert_eq!(
        apply_json_patch(&mut document, text.as_bytes()).unwrap_err().message(),
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"
    );
}

/// Conformance: 2.82
#[test]
fn copies_cannot_grow_without_bound() {
    let doubling = Value::from(vec![json!({"op": "copy", "from": "/a", "path": "/a/-"}); 100]);
    assert_eq!(json_patch(json!({"a": ["x"]}), &doubling), Err(422));
    let copies = Value::from(vec![json!({"op": "copy", "from": "/a", "path": "/b"}); 100]);
    assert_eq!(json_patch(json!({"a": "x".repeat(100_000)}), &copies), Err(422));
}

#[test]
fn moves_cannot_nest_without_bound() {
    for (outer, place) in [(json!({}), "/b/a"), (json!([]), "/b/-1")] {
        let mut operations = Vec::new();
        for _ in 0..3000 {
            operations.push(json!({"op": "add", "path": "/b", "value": outer}));
            operations.push(json!({"op": "move", "from": "/a", "path": place}));
            operations.push(json!({"op": "move", "from": "/b", "path": "/a"}));
        }
        assert_eq!(
            json_patch(json!({"a": {}}), &Value::from(operations)),
            Err(422),
            "{place}"
        );
    }
}

proptest! {
    #[test]
    fn any_operations_are_survived(
        operations in proptest::collection::vec((
            proptest::sample::select(vec!["add", "remove", "replace", "move", "copy", "test", "x"]),
            proptest::sample::select(vec!["", "/", "/a", "/a/0", "/a/-", "/a/-1", "/a/-2", "/a/b", "/b", "/~", "x", "/a/99999999999999999999", "/a/+0", "/a/-00", "b/a"]),
            proptest::sample::select(vec!["", "/a", "/b", "/a/0", "/a/-", "/a/-1", "/z", "x/a/1"]),
        ), 0..8),
    ) {
        let patch: Vec<Value> = operations
            .iter()
            .map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": [{"b": 1}]}))
            .collect();
        let _ = json_patch(json!({"a": [1, {"b": 2}], "b": {}}), &Value::from(patch));
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
        let mut document = json!({"a": 1});
        let _ = apply_json_patch(&mut document, &bytes);
        let _ = crate::apply_merge_patch(&mut document, &bytes);
    }
}
