use clap::Parser;

use super::*;

/// Makes the plan of these flags; ids begin with `t-`.
pub(super) fn planned(line: &str) -> RunPlan {
    let line = format!("traffic --request-id-prefix t {line}");
    let args = Args::try_parse_from(line.split_whitespace()).unwrap();
    args.plan().unwrap()
}
