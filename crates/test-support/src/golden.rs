//! Golden bytes: recordings of the wire and of the disk, below `crates/test-support/golden`.
//!
//! A changed recording is a changed wire or disk format: programs of other versions read these bytes. A wanted change
//! gets its own commit that says how older programs read the new bytes, and newer ones the old bytes. The tests
//! `golden…` of hub and coordinator play each other's recordings, so the command that records runs twice:
//!
//! ```text
//! for _ in 1 2; do UPDATE_GOLDEN=1 cargo test -p yurt-hub-client --test hub golden &&
//!     UPDATE_GOLDEN=1 cargo test -p yurt-coordinator --test api golden; done
//! UPDATE_GOLDEN=1 cargo test -p yurt-storage --test golden
//! ```
//!
//! A recording of the wire is text: sections with a title (`=== title`) and the bytes as they were sent. Bytes that
//! are no plain text are escaped as in a Rust byte string. A recording of the disk is a folder of compressed files.

use std::path::{Path, PathBuf};

use yurt_runtime::http::{Inflate, gzip_bytes};

/// Set to record instead of comparing.
pub const UPDATE_VARIABLE: &str = "UPDATE_GOLDEN";
/// Beginning of a line with a title.
const TITLE: &str = "=== ";
/// End of the title of escaped bytes.
const ESCAPED: &str = " (escaped)";
/// Maximum bytes of a recorded file, not compressed.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Titled bytes in the order in which they were sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recording(Vec<(String, Vec<u8>)>);

/// True if the tests record.
#[must_use]
pub fn is_updating() -> bool {
    std::env::var_os(UPDATE_VARIABLE).is_some()
}

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

// === impl Recording ===

impl Recording {
    /// The recording `name`.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn read(name: &str) -> Self {
        let path = path_of(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!(
                "{}: {error}; see test-support/src/golden.rs for recording it",
                path.display()
            )
        });
        Self::parse(&text)
    }

    /// Adds a section.
    pub fn add(&mut self, title: impl Into<String>, bytes: impl AsRef<[u8]>) {
        self.0.push((title.into(), bytes.as_ref().to_vec()));
    }

    /// Titles and bytes, in order.
    pub fn sections(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(title, bytes)| (title.as_str(), bytes.as_slice()))
    }

    /// Bytes of the section `title`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn section(&self, title: &str) -> &[u8] {
        let found = self.sections().find(|(one, _)| *one == title);
        found.unwrap_or_else(|| panic!("no section {title:?}")).1
    }

    /// Compares with the recording `name`, or replaces it if [`UPDATE_VARIABLE`] is set.
    ///
    /// # Panics
    /// At the first section that differs.
    #[track_caller]
    pub fn check(&self, name: &str) {
        if is_updating() {
            let path = path_of(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            return std::fs::write(path, self.text()).expect("a recording must be writable");
        }
        let recorded = Self::read(name);
        let text = |section: Option<&(String, Vec<u8>)>| match section {
            Some((title, bytes)) => format!("{title}\n{}", bytes.escape_ascii()),
            None => "nothing".to_owned(),
        };
        for place in 0..self.0.len().max(recorded.0.len()) {
            let (before, now) = (text(recorded.0.get(place)), text(self.0.get(place)));
            assert!(
                before == now,
                "golden/{name}, section {place}: the bytes changed, and with them the format.\n--- recorded\n{before}\n--- \
                 now\n{now}"
            );
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (title, bytes) in &self.0 {
            let plain = std::str::from_utf8(bytes).ok();
            let is_plain = |text: &&str| {
                let control = |one: char| one.is_control() && one != '\n';
                !text.chars().any(control) && !text.lines().any(|line| line.starts_with(TITLE))
            };
            match plain.filter(is_plain) {
                Some(plain) => text.extend([TITLE, title, "\n", plain, "\n"]),
                None => text.extend([TITLE, title, ESCAPED, "\n", &bytes.escape_ascii().to_string(), "\n"]),
            }
        }
        text
    }

    fn parse(text: &str) -> Self {
        let mut sections: Vec<(String, String)> = Vec::new();
        for line in text.split_inclusive('\n') {
            match (line.strip_prefix(TITLE), sections.last_mut()) {
                (Some(title), _) => sections.push((title.trim_end().to_owned(), String::new())),
                (None, Some((_, body))) => body.push_str(line),
                (None, None) => panic!("a recording begins with a title"),
            }
        }
        let bytes = |(title, body): (String, String)| {
            let body = body.strip_suffix('\n').unwrap_or(&body);
            match title.strip_suffix(ESCAPED) {
                Some(title) => (title.to_owned(), unescaped(body)),
                None => (title, body.as_bytes().to_vec()),
            }
        };
        Self(sections.into_iter().map(bytes).collect())
    }
}

/// Bytes of which `text` is the form of `escape_ascii`.
fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut left) = (Vec::new(), text.bytes());
    while let Some(byte) = left.next() {
        let byte = match byte {
            b'\\' => match left.next().expect("an escape must have an end") {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [left.next(), left.next()].map(|digit| digit.expect("two digits"));
                    let digits = std::str::from_utf8(&digits).expect("ASCII");
                    u8::from_str_radix(digits, 16).expect("hexadecimal digits")
                }
                itself => itself,
            },
            byte => byte,
        };
        bytes.push(byte);
    }
    bytes
}

/// Records the files `names` of `folder` as the folder `name`.
///
/// # Panics
/// When a file cannot be read or written.
pub fn record_files(name: &str, folder: &Path, names: &[&str]) {
    let target = path_of(name);
    std::fs::create_dir_all(&target).expect("a folder");
    for file in names {
        let bytes = std::fs::read(folder.join(file)).expect("a file to record");
        let packed = gzip_bytes(&bytes);
        std::fs::write(target.join(format!("{file}.gz")), packed).expect("a recording must be writable");
    }
}

/// Writes the recorded files of the folder `name` into `folder`.
///
/// # Panics
/// When a file cannot be read or written.
pub fn restore_files(name: &str, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    let files = std::fs::read_dir(path_of(name)).expect("a recorded folder");
    for file in files.map(|file| file.expect("a recorded file").path()) {
        let packed = std::fs::read(&file).expect("a recorded file");
        let bytes = Inflate::default()
            .whole(packed.into(), FILE_BYTES_MAX)
            .expect("gzip")
            .expect("its end");
        std::fs::write(folder.join(file.file_stem().expect("a name")), bytes).expect("a file");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_reads_as_it_was_written() {
        let mut recording = Recording::default();
        recording.add("GET /a", r#"{"é":"\n"}"#);
        recording.add("lines", "one\ntwo\n");
        recording.add("empty", "");
        recording.add("binary", b"k8s\0\xff\\\"'\r\n\t=== x");
        recording.add("title", "one\n=== two");
        let text = recording.text();
        assert_eq!(Recording::parse(&text), recording, "{text}");
        assert!(text.contains("{\"é\":\"\\n\"}") && text.contains("binary (escaped)\nk8s\\x00\\xff"));
        assert_eq!(recording.section("lines"), b"one\ntwo\n");
    }

    #[test]
    #[should_panic(expected = "the bytes changed")]
    fn other_byte_is_another_format() {
        let mut recording = Recording::read("example.txt");
        recording.check("example.txt");
        recording.0[0].1[0] ^= 1;
        recording.check("example.txt");
    }
}
