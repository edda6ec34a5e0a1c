//! Runs every kept input through its target, in every ordinary test run.

use std::path::Path;

use yurt_fuzz::TARGETS;

#[test]
fn kept_inputs_find_nothing() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in TARGETS {
        let folder = corpus.join(target.name);
        let inputs: Vec<_> = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .collect();
        assert!(!inputs.is_empty(), "{} has no kept inputs", target.name);
        for input in inputs {
            let path = input.unwrap().path();
            let data = std::fs::read(&path).unwrap();
            let outcome = std::panic::catch_unwind(|| (target.run)(&data));
            assert!(outcome.is_ok(), "{} breaks {}", path.display(), target.name);
        }
    }
}

#[test]
fn every_folder_of_the_corpus_has_a_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for folder in std::fs::read_dir(corpus).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(yurt_fuzz::find(&name).is_some(), "{name} is no target");
    }
}
