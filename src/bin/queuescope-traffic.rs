//! The bundled generator by its own name: `queuescope traffic`.

use std::process::ExitCode;

fn main() -> ExitCode {
    queuescope::cli::traffic_main()
}
