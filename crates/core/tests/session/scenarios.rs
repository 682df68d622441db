//! The contract as stories: every paragraph of it about the life of a session.

mod attempts;
mod calls;
mod creation;
mod delete;
mod descendants;
mod expiry;
mod facts;
mod freezing;
mod input;
mod readiness;
mod recovery;
mod restart;
mod stop;
mod update;
