//! `queuescope SUBCOMMAND`.

use std::process::ExitCode;

fn main() -> ExitCode {
    queuescope::cli::main()
}
