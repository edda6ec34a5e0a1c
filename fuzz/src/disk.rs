//! The file of a store after damage.

use std::cell::RefCell;
use std::path::Path;

use yurt_apimachinery::Space;
use yurt_runtime::Clock;
use yurt_storage::embedded::Embedded;

thread_local! {
    /// A file with content, made once.
    static SOUND: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Overwrites places of an intact file with bytes of the input: four bytes of position, one of length, then the bytes
/// to write. The store opens or fails with an error; it neither panics nor hangs.
pub(crate) fn recovery(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("store.redb");
    let mut image = SOUND.with(|sound| {
        let mut sound = sound.borrow_mut();
        if sound.is_empty() {
            *sound = sound_file(&path);
        }
        sound.clone()
    });
    let mut rest = data;
    while let Some((head, tail)) = rest.split_first_chunk::<5>() {
        let place = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize % image.len();
        let length = usize::from(head[4]).min(tail.len()).min(image.len() - place);
        image[place..place + length].copy_from_slice(&tail[..length]);
        rest = &tail[length..];
    }
    std::fs::write(&path, &image).expect("the folder must be writable");
    if let Ok(store) = Embedded::open(&path, Clock::system(), Space::Own) {
        drop(store);
    }
}

fn sound_file(path: &Path) -> Vec<u8> {
    drop(Embedded::open(path, Clock::system(), Space::Own).expect("an empty folder"));
    std::fs::read(path).expect("the file was written")
}
