//! The default values of flags.

/// Parses a command line without flags.
pub(super) fn default<T: clap::Args>() -> T {
    let command = T::augment_args(clap::Command::new("sim").no_binary_name(true));
    let read = command.try_get_matches_from(std::iter::empty::<&str>());
    match read.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(flags) => flags,
        Err(error) => error.exit(),
    }
}
