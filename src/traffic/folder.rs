//! The folder of a run. Each run has its own, so that none overwrites another's files.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::clock::Stamp;
use crate::error::Error;
use crate::report::outputs;

/// Where a run's files go.
#[derive(Clone, Debug)]
pub struct Folder {
    /// The folder that the user named. Without one it is a new one in `parent`, named after the run's start, with a link `latest` beside it.
    given: Option<PathBuf>,
    parent: PathBuf,
    /// Whether an earlier run's files in a given one may be replaced.
    force: bool,
}

/// The name of the link to the folder of the most recent run.
const LATEST: &str = "latest";

impl Folder {
    /// The folder `given`, or a new one in `parent` if `None`.
    pub fn new(given: Option<&Path>, force: bool, parent: &str) -> Folder {
        Folder {
            given: given.map(Path::to_owned),
            parent: parent.into(),
            force,
        }
    }

    /// Checks that a given folder holds none of `files` and is not an experiment's, and that `latest` beside a new one is a link, if it is
    /// there; changes nothing.
    ///
    /// # Errors
    /// One of these is not so, and the files may not be replaced.
    pub fn check(&self, files: &[&str]) -> Result<(), Error> {
        let Some(dir) = &self.given else {
            let latest = self.parent.join(LATEST);
            return match latest.exists() && !latest.is_symlink() {
                true => Err(create_error(&latest, "it is no link")),
                false => Ok(()),
            };
        };
        let files = if self.force { &[] } else { files };
        outputs::check_folder(dir, files).map_err(|problem| {
            Error::usage(format!(
                "--output-dir {problem}, or leave the flag out (traffic replaces its own run with --force; node and routing go \
                 on with theirs by --resume)"
            ))
        })
    }

    /// Creates the folder of a run that begins `now`. Removes `files`, and nothing else, from a given one that may be replaced.
    ///
    /// # Errors
    /// As [`Folder::check`], or the folder or the link to it cannot be created.
    pub fn create(&self, files: &[&str], now: Stamp) -> Result<PathBuf, Error> {
        self.check(files)?;
        let Some(dir) = &self.given else {
            return create_in(&self.parent, now);
        };
        std::fs::create_dir_all(dir).map_err(|cause| create_error(dir, cause))?;
        for file in files.iter().map(|file| dir.join(file)) {
            if let Err(cause) = std::fs::remove_file(&file)
                && cause.kind() != ErrorKind::NotFound
            {
                return Err(create_error(&file, cause));
            }
        }
        Ok(dir.clone())
    }
}

fn create_in(parent: &Path, now: Stamp) -> Result<PathBuf, Error> {
    std::fs::create_dir_all(parent).map_err(|cause| create_error(parent, cause))?;
    let date = now.compact_utc();
    // `create_dir` is atomic: of two runs that begin in the same second, the second takes the next name.
    let (mut name, mut number) = (date.clone(), 1);
    let dir = loop {
        let dir = parent.join(&name);
        match std::fs::create_dir(&dir) {
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(cause) => return Err(create_error(&dir, cause)),
            Ok(()) => break dir,
        }
        name = format!("{date}-{number}");
    };
    link(parent, &name).map_err(|cause| create_error(&parent.join(LATEST), cause))?;
    Ok(dir)
}

/// The error for a folder or file that cannot be created or replaced.
fn create_error(path: &Path, cause: impl Display) -> Error {
    let path = path.display();
    Error::failed(format!(
        "--output-dir {path}: cannot be made: {cause}; name a folder that can be written"
    ))
}

/// Points `latest` to the run's folder. It is replaced atomically, so that a reader always finds it.
fn link(parent: &Path, name: &str) -> io::Result<()> {
    let new = parent.join(format!(".{LATEST}-{name}"));
    std::os::unix::fs::symlink(name, &new)?;
    std::fs::rename(&new, parent.join(LATEST)).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::NANOS;

    const FILES: [&str; 2] = ["a.csv", "b.json"];
    const NOW: Stamp = Stamp::from_nanos(1_795_296_000 * NANOS);

    #[test]
    fn runs_of_one_second_have_folders_of_their_own_and_latest_leads_to_the_last() {
        let root = tempfile::tempdir().unwrap();
        let parent = root.path().join("results/traffic");
        let folder = Folder::new(None, false, parent.to_str().unwrap());
        let create = || folder.create(&FILES, NOW).unwrap();
        std::thread::scope(|scope| {
            (0..8).for_each(|_| {
                scope.spawn(create);
            });
        });
        assert!(parent.join("20261121T212000Z").is_dir());
        let last = create();
        let latest = parent.join(LATEST).canonicalize().unwrap();
        assert_eq!(latest, last.canonicalize().unwrap());
        let left = std::fs::read_dir(&parent).unwrap().count();
        assert_eq!(left, 10, "nine runs and the link");
    }

    #[test]
    fn a_file_named_latest_that_is_no_link_stays() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(LATEST), "mine").unwrap();
        let folder = Folder::new(None, false, root.path().to_str().unwrap());
        let error = folder.create(&FILES, NOW).unwrap_err().to_string();
        let said = "latest: cannot be made: it is no link";
        assert!(error.contains(said), "{error}");
        let kept = std::fs::read_to_string(root.path().join(LATEST)).unwrap();
        assert_eq!(kept, "mine");
        let left = std::fs::read_dir(root.path()).unwrap().count();
        assert_eq!(left, 1, "no folder of a run that did not begin");
    }

    #[test]
    fn a_given_folder_must_not_hold_a_run_unless_it_is_to_be_replaced() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let given = |force| Folder::new(Some(&dir), force, "unused");
        given(false).create(&FILES, NOW).unwrap();
        std::fs::write(dir.join("mine"), "mine").unwrap();
        given(false).create(&FILES, NOW).unwrap();
        std::fs::write(dir.join("b.json"), "old").unwrap();
        let error = given(false).create(&FILES, NOW).unwrap_err().to_string();
        assert!(error.contains("a/b: holds b.json already"), "{error}");
        assert!(error.contains("--force"), "{error}");
        given(true).check(&FILES).unwrap();
        assert!(dir.join("b.json").exists(), "a check changes nothing");
        given(true).create(&FILES, NOW).unwrap();
        assert!(!dir.join("b.json").exists());
        assert!(dir.join("mine").exists(), "other files stay");

        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Folder::new(Some(&file), true, "unused").create(&FILES, NOW);
        assert!(error.unwrap_err().to_string().contains("/file: "));
    }
}
