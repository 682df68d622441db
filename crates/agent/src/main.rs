//! One program with several faces; see the library's first page.

fn main() -> std::process::ExitCode {
    outlive_agent::face::main(outlive_agent::supervisor::main)
}
