//! The binary `outlive`: the whole of it is in the library, so that tests can look at it.

use std::process::ExitCode;

fn main() -> ExitCode {
    outlive_cli::main()
}
