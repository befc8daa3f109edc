//! Finds the program of sglang-router.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Its file name.
const PROGRAM: &str = "smg";
/// The folder that `scripts/router.sh` makes.
const TOOLS: &str = ".tools";
/// The prefix of its virtual environments there, before the version.
const VENV: &str = "sglang-router-";

/// Returns the `given` program, else the one in PATH, else the newest that `scripts/router.sh` installed here.
///
/// # Errors
/// There is none. Says how to get one.
pub fn find(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        if given.components().count() > 1 && !given.is_file() {
            bail!(
                "the router's program {} is not there; `pip install sglang-router` brings smg",
                given.display()
            );
        }
        return Ok(given.to_owned());
    }
    in_path(PROGRAM).or_else(|| installed(Path::new(TOOLS))).with_context(|| {
        "router = \"sglang-router\" needs its program smg, which is neither in PATH nor in .tools/; \
         `pip install sglang-router` or `bash scripts/router.sh` brings it"
    })
}

/// Finds a program in PATH.
pub(in crate::experiment) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut programs = std::env::split_paths(&path).map(|folder| folder.join(name));
    programs.find(|program| program.is_file())
}

fn installed(tools: &Path) -> Option<PathBuf> {
    let folders = std::fs::read_dir(tools).ok()?.flatten();
    let named = folders.filter(|folder| folder.file_name().to_string_lossy().starts_with(VENV));
    let programs = named.map(|folder| folder.path().join("bin").join(PROGRAM));
    programs.filter(|program| program.is_file()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_installed_router_is_found() {
        let tools = tempfile::tempdir().unwrap();
        assert_eq!(installed(tools.path()), None);
        for router in ["sglang-router-0.3.2", "sglang-router-0.3.1", "smg-1.13.0"] {
            let folder = tools.path().join(router).join("bin");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("smg"), "").unwrap();
        }
        // An incomplete installation.
        std::fs::create_dir(tools.path().join("sglang-router-0.4.0")).unwrap();
        let newest = tools.path().join("sglang-router-0.3.2/bin/smg");
        assert_eq!(installed(tools.path()), Some(newest));
        let error = find(Some(Path::new("/no/smg"))).unwrap_err().to_string();
        assert!(error.contains("/no/smg is not there"), "{error}");
    }
}
