//! Sessions by id or by name.

use crate::{
    args::session::OneSession,
    client::{Call, Client},
    error::{Failure, Result},
    limits::NAMES_LISTED_MAX,
};

/// The path of a sandbox, checked so that no argument can reach another path.
pub fn sandbox_path(sandbox: &str) -> Result<String> {
    Ok(format!(
        "/api/v1/sandboxes/{}",
        checked(sandbox, "sandbox")?
    ))
}

/// The path of a sandbox where sandboxes sleep and wake; see [`sandbox_path`].
pub fn sleeper_path(sandbox: &str) -> Result<String> {
    Ok(format!("/v1/sandbox/{}", checked(sandbox, "sandbox")?))
}

/// Refuses what can't be an id: it would change the path of the call.
pub fn checked<'a>(id: &'a str, what: &str) -> Result<&'a str> {
    let fine = !id.is_empty()
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if fine {
        Ok(id)
    } else {
        Err(Failure::usage(format!(
            "`{}` is no {what} id",
            crate::event::escaped(id)
        )))
    }
}

/// The id of the session that an argument means.
pub async fn session_id(client: &Client, target: &OneSession) -> Result<String> {
    let OneSession { sandbox, session } = target;
    if session.starts_with("ses-") || session.starts_with("ctx-") {
        return checked(session, "session").map(str::to_owned);
    }
    let path = format!("{}/sessions", sandbox_path(sandbox)?);
    let answer = client.call(Call::get(&path)).await?;
    let ids: Vec<&str> = answer["sessions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .filter(|candidate| candidate["spec"]["name"] == session.as_str())
        .filter_map(|candidate| candidate["id"].as_str())
        .collect();
    match ids.as_slice() {
        [id] => checked(id, "session").map(str::to_owned),
        [] => Err(Failure::new(
            "session_not_found",
            format!("no session is named `{session}`"),
        )
        .with_next(format!(
            "`outlive session list {sandbox}` shows what is there"
        ))),
        many => {
            let listed: Vec<&str> = many.iter().copied().take(NAMES_LISTED_MAX).collect();
            let more = if many.len() > listed.len() {
                ", …"
            } else {
                ""
            };
            Err(Failure::new(
                "ambiguous_name",
                format!(
                    "{} sessions are named `{session}`: {}{more}",
                    many.len(),
                    listed.join(", ")
                ),
            )
            .with_next("give the id of the one you mean"))
        }
    }
}
