//! Keeper, spawner and pump in the runtime without isolation: real processes, no privileges.

mod common;

use std::process::ExitCode;

use common::{sandbox::Sandbox, stories};
use outlive_api::launch::RuntimeKind;

fn main() -> ExitCode {
    common::main(&[
        ("a_program_starts_clean", || {
            stories::a_program_starts_clean(&sandbox());
        }),
        ("arguments_arrive_exactly", || {
            stories::arguments_arrive_exactly(&sandbox());
        }),
        ("a_start_that_fails_says_why", || {
            stories::a_start_that_fails_says_why(&sandbox());
        }),
        ("a_shut_gate_opens_to_nobody", || {
            stories::a_shut_gate_opens_to_nobody(&sandbox());
        }),
        ("two_hundred_codes_are_exact", || {
            stories::two_hundred_codes_are_exact(&sandbox());
        }),
        ("short_programs_lose_nothing", || {
            stories::short_programs_lose_nothing(&sandbox(), 1000);
        }),
        ("ten_kills_of_the_supervisor_change_nothing", || {
            stories::ten_kills_of_the_supervisor_change_nothing(&sandbox());
        }),
        ("an_end_without_a_supervisor_is_known", || {
            stories::an_end_without_a_supervisor_is_known(&sandbox());
        }),
        ("kills_of_the_pump_lose_no_byte", || {
            stories::kills_of_the_pump_lose_no_byte(&sandbox(), 100);
        }),
        ("keeper_and_supervisor_are_replaced_in_place", || {
            stories::keeper_and_supervisor_are_replaced_in_place(&sandbox());
        }),
        ("orphans_leave_no_zombies", || {
            stories::orphans_leave_no_zombies(&sandbox());
        }),
    ])
}

fn sandbox() -> Sandbox {
    Sandbox::launch(RuntimeKind::Process)
}
