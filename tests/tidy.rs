//! The rules that the compiler does not check: where unsafe code stands, who names whom, what no text may say.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Unsafe blocks, functions, impls and traits of each file of the library. A number may fall; a rise, or a new file,
/// is a decision that ARCHITECTURE.md has to tell of.
const UNSAFE: &[(&str, usize)] = &[
    ("runtime/body.rs", 13),
    ("runtime/buf.rs", 20),
    ("runtime/completion.rs", 1),
    ("runtime/registry/mapping.rs", 10),
    ("runtime/registry/segment.rs", 2),
    ("runtime/ring/attempt.rs", 23),
    ("runtime/ring/buf_ring.rs", 6),
    ("runtime/ring/kernel.rs", 20),
    ("runtime/ring/mod.rs", 6),
    ("runtime/ring/scripted.rs", 3),
];

/// A file that is longer than this wants splitting by meaning.
const LINES_MAX: usize = 850;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below these folders, by its path from the root.
fn sources(folders: &[&str]) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut left: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            left.extend(entries.filter(|path| !path.ends_with("target") && !path.ends_with("corpus")));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
    assert!(!files.is_empty(), "there are sources below {folders:?}");
    files
}

/// The code of a file: no comments, and nothing from a test module of its own on.
fn code(text: &str) -> Vec<&str> {
    text.lines().take_while(|line| *line != "mod tests {").map(|line| line.split("//").next().unwrap_or("")).collect()
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("fake_park.rs")
}

#[test]
fn unsafe_stands_where_the_architecture_says_and_becomes_less() {
    let known: BTreeMap<&str, usize> = UNSAFE.iter().copied().collect();
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut found = BTreeMap::new();
    for (name, text) in sources(&["lib.rs", "runtime", "ops"]) {
        if is_test(&name) {
            continue;
        }
        let count = code(&text).iter().map(|line| line.matches("unsafe ").count()).sum::<usize>();
        if count > 0 {
            found.insert(name, count);
        }
    }
    let now: Vec<String> = found.iter().map(|(name, count)| format!("    (\"{name}\", {count}),")).collect();
    for (name, count) in &found {
        assert!(
            architecture.contains(&format!("`{name}`")),
            "ARCHITECTURE.md does not list {name} among the unsafe files"
        );
        let bound = known.get(name.as_str()).copied().unwrap_or(0);
        assert!(*count <= bound, "{name} has {count} unsafe, and had {bound}; all counts now:\n{}", now.join("\n"));
    }
    assert_eq!(
        found.iter().map(|(name, count)| (name.as_str(), *count)).collect::<Vec<_>>(),
        known.into_iter().collect::<Vec<_>>(),
        "a count has fallen: write it down"
    );
}

#[test]
fn every_unsafe_block_says_why_and_names_its_test() {
    for (name, text) in sources(&["runtime"]) {
        let lines: Vec<&str> = text.lines().collect();
        if is_test(&name) {
            continue;
        }
        for (at, line) in lines.iter().enumerate() {
            if !line.contains("// SAFETY:") {
                continue;
            }
            let argument = lines[at..].iter().map(|line| line.trim_start());
            let argument: Vec<&str> = argument.map_while(|line| line.strip_prefix("// ")).collect();
            let argument = argument.join(" ");
            assert!(
                argument.contains("ested by") || argument.contains("uarded by"),
                "{name}:{}: the argument names no test",
                at + 1
            );
        }
    }
}

#[test]
fn every_test_that_an_argument_names_exists() {
    let all = sources(&["runtime", "ops", "tests"]);
    let tests: String = all.values().cloned().collect();
    for (name, text) in &all {
        let prose =
            text.lines().map(|line| line.trim_start().trim_start_matches('/').trim()).collect::<Vec<_>>().join(" ");
        for marker in [concat!("ested", " by `"), concat!("uarded", " by `")] {
            for named in prose.split(marker).skip(1) {
                let test = named.split('`').next().unwrap();
                assert!(tests.contains(&format!("fn {test}")), "{name} names the test {test}, which does not exist");
            }
        }
    }
}

#[test]
fn the_architecture_names_only_tests_that_exist() {
    let tests: String = sources(&["runtime", "ops", "tests"]).into_values().collect();
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for line in architecture.lines().filter(|line| line.starts_with("| I")) {
        for test in line.rsplit('|').nth(1).unwrap().split('`').skip(1).step_by(2).filter(|word| word.contains('_')) {
            // A name that ends in an underscore stands for a family.
            let wanted = if test.ends_with('_') { format!("fn {test}") } else { format!("fn {test}(") };
            assert!(tests.contains(&wanted), "ARCHITECTURE.md names the test {test}, which does not exist");
        }
    }
}

#[test]
fn what_broke_for_others_has_its_test_where_the_table_says() {
    let contributing = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let all = sources(&["runtime", "ops", "tests"]);
    let is_key = |key: &str| key.len() == 4 && key.as_bytes()[1] == b'-';
    let mut rows = 0;
    for line in contributing.lines() {
        let cells: Vec<&str> = line.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        let [key, _, wheres] = cells[..] else { continue };
        if !is_key(key) {
            continue;
        }
        rows += 1;
        assert!(!wheres.is_empty(), "{key} has neither a test nor a reason");
        if !wheres.ends_with('`') || wheres.contains(' ') && !wheres.contains("`, `") {
            continue;
        }
        let prefix = format!("fn {}_", key.replace('-', "").to_lowercase());
        for place in wheres.split(", ").map(|place| place.trim_matches('`')) {
            let is_there = |(name, text): (&String, &String)| name.starts_with(place) && text.contains(&prefix);
            assert!(all.iter().any(is_there), "CONTRIBUTING.md says that {place} has a test of {key}");
        }
    }
    assert!(rows > 50, "the table of what broke for others is there");
}

#[test]
fn the_machine_names_no_operation() {
    for (name, text) in sources(&["runtime"]) {
        assert!(!code(&text).iter().any(|line| line.contains("crate::ops")), "{name} reaches up into ops/");
    }
}

#[test]
fn operations_see_the_machine_through_its_front_door() {
    for (name, text) in sources(&["ops"]) {
        for line in code(&text) {
            let rest = line.split("crate::runtime::").nth(1).unwrap_or("");
            let module = rest.split([':', ';', ',', ' ']).next().unwrap_or("");
            let reaches_in =
                rest.starts_with(|first: char| first.is_lowercase()) && rest[module.len()..].starts_with("::");
            assert!(!reaches_in, "{name} reaches past runtime/mod.rs: {line}");
        }
    }
}

#[test]
fn files_are_short_enough_to_read() {
    for (name, text) in sources(&["lib.rs", "runtime", "ops", "examples", "benches", "tests"]) {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{name} has {lines} lines; split it by meaning");
    }
}

#[test]
fn no_file_is_named_after_nothing() {
    for name in sources(&["runtime", "ops", "examples", "benches", "tests"]).into_keys() {
        let stem = Path::new(&name).file_stem().unwrap().to_str().unwrap();
        assert!(!["utils", "util", "common", "helpers", "misc", "prelude"].contains(&stem), "{name} says nothing");
    }
}

#[test]
fn the_changelog_knows_this_version() {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    assert!(
        changelog.contains(&format!("## {}", env!("CARGO_PKG_VERSION"))),
        "CHANGELOG.md has no heading for this version"
    );
}
