//! Finds the program of sglang-router.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Finds the `given` program of the router, or `smg`, in PATH or at its path.
///
/// # Errors
/// It is not there. Says how to get one.
pub fn find(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let program = given.unwrap_or(Path::new("smg"));
    let at_path = || Some(program.to_owned()).filter(|program| program.is_file());
    in_path(program).or_else(at_path).with_context(|| {
        let program = program.display();
        format!(
            "the router's program {program} is not there; `pip install sglang-router` brings smg, and router_program names another"
        )
    })
}

/// Finds a program in PATH.
pub(in crate::experiment) fn in_path(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut programs = std::env::split_paths(&path).map(|folder| folder.join(&name));
    programs.find(|program| program.is_file())
}
