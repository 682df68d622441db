//! Keeper, spawner and pump in the runtime without isolation: real processes, no privileges.
#![expect(clippy::unwrap_used, reason = "test")]

mod common;

use std::process::ExitCode;

use common::{
    fixture::{Did, Do},
    sandbox::Sandbox,
};
use outlive_api::launch::RuntimeKind;
use outlive_core::event::ExitStatus;

fn main() -> ExitCode {
    common::main(&[(
        "a_command_runs_and_its_code_is_known",
        a_command_runs_and_its_code_is_known,
    )])
}

fn sandbox() -> Sandbox {
    Sandbox::launch(RuntimeKind::Process)
}

fn a_command_runs_and_its_code_is_known() {
    let sandbox = sandbox();
    let (status, output) = sandbox.run("ses-a", &["sh", "-c", "printf hello; exit 7"]);
    assert_eq!((status, output.as_str()), (ExitStatus::Code(7), "hello"));
}
