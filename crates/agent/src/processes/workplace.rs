//! Who attempts run as, and where they begin, as the sandbox's tier has it.

use std::os::fd::OwnedFd;

use outlive_api::launch::{IdRange, LaunchConfig, RuntimeKind};
use outlive_core::spec::{User, Who};

use crate::{
    account::{Account, Credentials, UnknownName},
    machine::StartFailure,
};

/// Whom attempts may run as.
#[derive(Debug)]
enum Users {
    /// Anybody whom the sandbox knows, this one where nobody is named, as long as there is such an
    /// id: so many there are.
    Inside(User, u32),
    /// Who the supervisor is.
    Ours,
    /// The sandbox's own user of the host, with this home.
    One(Credentials, String),
}

/// What every attempt of the sandbox starts with.
#[derive(Debug)]
pub(super) struct Workplace {
    users: Users,
    /// Where users are looked up, when it isn't our own root.
    root: Option<OwnedFd>,
    /// Working directory of attempts that name none; empty is the user's home.
    cwd: String,
    /// The sandbox's own idea of a home at its launch.
    home: Option<String>,
}

impl Workplace {
    pub(super) fn of(config: &LaunchConfig, root: Option<OwnedFd>) -> Self {
        Self {
            users: match (config.runtime, config.ids) {
                (RuntimeKind::TwoUid, Some(ids)) => {
                    let credentials = Credentials {
                        uid: ids.workload(),
                        gid: ids.workload(),
                        groups: Vec::new(),
                    };
                    Users::One(credentials, format!("{}/files", config.directory))
                }
                (RuntimeKind::Namespace, ids) => {
                    let count = ids.map_or(IdRange::WORKLOAD_COUNT_MAX, IdRange::workload_count);
                    Users::Inside(config.user.clone(), count)
                }
                (RuntimeKind::Process | RuntimeKind::TwoUid, _) => Users::Ours,
            },
            root,
            cwd: config.cwd.clone(),
            home: config.env.get("HOME").cloned(),
        }
    }

    /// Who an attempt is, by name, and by ids where they differ from the supervisor's.
    pub(super) fn account(
        &self,
        asked: Option<&User>,
    ) -> Result<(Account, Option<Credentials>), StartFailure> {
        let failed = |error: UnknownName| StartFailure(error.to_string());
        match (&self.users, asked) {
            (Users::Inside(own, count), asked) => {
                let account = Account::find(self.root.as_ref(), asked.unwrap_or(own));
                let account = account.map_err(failed)?;
                let credentials = account.credentials.clone();
                let highest = credentials.uid.max(credentials.gid);
                if highest >= *count {
                    return Err(StartFailure(format!(
                        "user: the ids of this sandbox end below {count}, and {highest} is none of \
                         them; the server's user needs more in /etc/subuid and /etc/subgid"
                    )));
                }
                Ok((account, Some(credentials)))
            }
            (Users::One(credentials, home), None) => {
                let account = Account {
                    credentials: credentials.clone(),
                    name: credentials.uid.to_string(),
                    home: home.clone(),
                };
                Ok((account, Some(credentials.clone())))
            }
            (Users::Ours, None) => {
                let ours = User {
                    user: Who::Id(rustix::process::geteuid().as_raw()),
                    group: None,
                };
                let account = Account::find(None, &ours).map_err(failed)?;
                Ok((account, None))
            }
            (Users::Ours, Some(_)) => Err(StartFailure(
                "user: the runtime `process` runs everything as the server's own user".to_owned(),
            )),
            (Users::One(..), Some(_)) => Err(StartFailure(
                "user: the runtime `two-uid` runs everything of a sandbox as one user".to_owned(),
            )),
        }
    }

    pub(super) fn cwd(&self, account: &Account, asked: &str) -> String {
        let own = match (self.cwd.as_str(), &self.home) {
            ("", Some(home)) => home,
            ("", None) => &account.home,
            (cwd, _) => cwd,
        };
        match asked {
            "" => own.to_owned(),
            absolute if absolute.starts_with('/') => absolute.to_owned(),
            relative => format!("{own}/{relative}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_the_sandbox_has_not_is_refused_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let place = |count| Workplace {
            users: Users::Inside(User::ROOT, count),
            root: Some(OwnedFd::from(std::fs::File::open(root.path()).unwrap())),
            cwd: String::new(),
            home: None,
        };
        let asked = |text| User::parse(text).unwrap();
        place(1).account(Some(&asked("0"))).unwrap();
        place(65_536).account(Some(&asked("1000"))).unwrap();
        for other in ["1000", "0:1"] {
            let StartFailure(why) = place(1).account(Some(&asked(other))).unwrap_err();
            assert!(why.contains("/etc/subuid"), "{why}");
        }
    }
}
