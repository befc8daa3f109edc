//! What files may be called and how long they may be.

use super::source::Source;

/// Names that say nothing of what is inside.
const VAGUE: [&str; 5] = ["common", "helper", "helpers", "manager", "utils"];

/// A file of this many lines is hard to hold in mind.
const LONG: usize = 500;

/// What is wrong with a file.
fn faults(source: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |what: String| faults.push(format!("{}: {what}", source.path));
    if source.path.ends_with("/mod.rs") {
        fault("foo.rs and foo/ instead of foo/mod.rs".into());
    }
    let tokens = source.tokens();
    let pairs = tokens.windows(2);
    let inline = pairs
        .filter(|pair| pair[0].text == "mod")
        .map(|p| p[1].text);
    for module in source.modules().into_iter().chain(inline) {
        if VAGUE.contains(&module) {
            fault(format!("`{module}` says nothing: name what is inside"));
        }
    }
    let mut pairs = tokens.windows(2);
    if pairs.any(|pair| pair[0].text == "allow" && pair[1].text == "(") {
        fault("`#[expect(lint, reason = …)]` instead of `allow`".into());
    }
    let lines = source.text.lines().count();
    if lines > LONG {
        fault(format!("{lines} lines: find the missing concept"));
    }
    faults
}

#[test]
fn files_are_named_and_sized_as_the_house_wants() {
    let sources = Source::all();
    let found: Vec<String> = sources.iter().flat_map(faults).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_wrong_file_is_complained_of() {
    let file = |path: &str, text: &str| Source {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let count = |path: &str, text: &str| faults(&file(path, text)).len();
    assert_eq!(
        count("src/proxy/admin.rs", "mod tests {}\n// allow(x)\n"),
        0
    );
    assert_eq!(count("src/proxy/mod.rs", ""), 1);
    assert_eq!(count("src/proxy/utils.rs", ""), 1);
    assert_eq!(count("src/proxy.rs", "mod helpers;"), 1);
    assert_eq!(count("src/proxy.rs", "#[allow(dead_code)] fn f() {}"), 1);
    assert_eq!(count("src/proxy.rs", &"\n".repeat(LONG + 1)), 1);
}
