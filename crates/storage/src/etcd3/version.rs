//! Versions of etcd that report a watch's progress in order with its events. Pure.
//!
//! Older members answer a progress request with the present revision, even while earlier events are still unsent
//! (<https://github.com/etcd-io/etcd/issues/15220>, fixed in 3.4.25 and 3.5.8;
//! <https://github.com/etcd-io/etcd/issues/17507>, fixed in 3.4.31 and 3.5.13). A watch that trusts such a report loses
//! the changes in between. The limits are kube-apiserver's.

/// True if a member that reports the version `text` sends progress in order. Text that is no version is not.
pub(super) fn has_ordered_progress(text: &str) -> bool {
    let text = text.split_once('+').map_or(text, |(version, _build)| version);
    let (numbers, is_release) = match text.split_once('-') {
        Some((numbers, _pre_release)) => (numbers, false),
        None => (text, true),
    };
    let numbers: Result<Vec<u32>, _> = numbers.split('.').map(str::parse).collect();
    let Ok([major, minor, patch]) = numbers.as_deref() else {
        return false;
    };
    let since = match (major, minor) {
        (3, 4) => 31,
        (3, 5) => 13,
        (major, minor) => return (*major, *minor) >= (3, 6),
    };
    // A pre-release precedes its release.
    *patch > since || *patch == since && is_release
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_ordered_from_3_4_31_and_3_5_13() {
        for old in [
            "2.3.8",
            "3.3.27",
            "3.4.0",
            "3.4.30",
            "3.4.31-rc.0",
            "3.5.0",
            "3.5.12",
            "3.5.0-alpha.0",
            "3.5.13-rc.1",
        ] {
            assert!(!has_ordered_progress(old), "{old}");
        }
        for new in [
            "3.4.31",
            "3.4.37",
            "3.5.13",
            "3.5.14-rc.0",
            "3.5.13+build.7",
            "3.6.0-alpha",
            "3.6.0-alpha.0",
            "3.6.6",
            "3.10.0",
            "4.0.0",
        ] {
            assert!(has_ordered_progress(new), "{new}");
        }
    }

    #[test]
    fn text_that_is_no_version_has_no_ordered_progress() {
        for text in ["", "3", "3.6", "v3.6.0", "3.6.x", "3.6.0.1", "-", "not decided"] {
            assert!(!has_ordered_progress(text), "{text:?}");
        }
    }
}
