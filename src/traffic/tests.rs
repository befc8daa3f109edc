use clap::Parser;

use super::*;

/// What the generator makes of these flags; ids begin with `t-`.
pub(super) fn planned(line: &str) -> RunPlan {
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: Args,
    }
    let line = format!("traffic --request-id-prefix t {line}");
    let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
    flags.args.plan().unwrap()
}
