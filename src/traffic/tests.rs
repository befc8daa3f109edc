use clap::Parser;

use super::*;

fn args(line: &str) -> Args {
    let line = format!("traffic --request-id-prefix t {line}");
    Args::try_parse_from(line.split_whitespace()).unwrap()
}

/// Makes the plan of these flags; ids begin with `t-`.
pub(super) fn planned(line: &str) -> RunPlan {
    args(line).plan().unwrap()
}

/// Why these flags make no plan.
pub(super) fn refused(line: &str) -> String {
    args(line).plan().unwrap_err().to_string()
}
