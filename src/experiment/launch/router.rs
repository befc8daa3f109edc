//! Finds the program of sglang-router.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Its file name.
const PROGRAM: &str = "smg";

/// Returns the `given` program, else the one in PATH.
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
    in_path(PROGRAM).context(
        "router = \"sglang-router\" needs its program smg, which is not in PATH; `pip install sglang-router` brings it, or give its \
         path by router_program",
    )
}

/// Finds a program in PATH.
pub(in crate::experiment) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut programs = std::env::split_paths(&path).map(|folder| folder.join(name));
    programs.find(|program| program.is_file())
}
