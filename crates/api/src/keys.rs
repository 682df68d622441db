//! API keys: who may do what.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything, keys included.
    Admin,
    /// Everything in its owner's sandboxes.
    Member,
    /// Reading its owner's sandboxes.
    ReadOnly,
}

/// A new key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateKey {
    /// The tenant it belongs to, 1 to 64 characters.
    pub owner: String,
    /// What it allows.
    pub role: Role,
    /// A label for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it stops working; RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// A key right after its creation: the only time the secret is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    /// Its id, to list and revoke it.
    pub id: String,
    /// The secret to send as `Authorization: Bearer`.
    pub key: String,
}

/// A key as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Its id.
    pub id: String,
    /// The tenant it belongs to.
    pub owner: String,
    /// What it allows.
    pub role: Role,
    /// A label for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it was made; RFC 3339.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it stops working; RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// All keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    /// Ordered by creation.
    pub keys: Vec<Key>,
}
