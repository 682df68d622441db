//! Which backend a server uses, and what it says when it can't have the best.

use outlive_api::launch::RuntimeKind;

/// Said aloud when `namespace` can't be had and was not insisted on.
pub(super) const fn warning(used: RuntimeKind) -> &'static str {
    match used {
        RuntimeKind::Namespace | RuntimeKind::TwoUid => {
            "this host has no namespaces for sandboxes; using runtime `two-uid`: sandboxes are \
             users of the host and see what its users see"
        }
        RuntimeKind::Process => {
            "this host can't isolate sandboxes; using runtime `process`: NO ISOLATION between \
             sandboxes, and none from the host"
        }
    }
}

/// Which backend a server uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuntimeChoice {
    /// `namespace` where the host allows it, else `two-uid` or `process`, said aloud.
    #[default]
    Auto,
    /// Nested namespaces, or nothing.
    Namespace,
    /// No namespaces, but the agent under a user of its own.
    TwoUid,
    /// No isolation.
    Process,
}
