//! Edits of the Secret by a person.

use super::{Credential, Secret, World};

impl World {
    /// Writes the Secret as a person does. `hash`: token that the person puts back. `None`: the
    /// Secret gets a new foreign token, or no token if `foreign` is false.
    pub(super) fn edit(&mut self, foreign: bool, hash: Option<String>) {
        self.versions += 1;
        let put_back = hash.is_some();
        let token = hash.or_else(|| {
            foreign.then(|| {
                self.foreign += 1;
                let hash = format!("foreign{}", self.foreign);
                let credential = Credential {
                    name: String::new(),
                    alive: true,
                    excused: false,
                    leaked: false,
                    ours: false,
                    expires: None,
                    issued: self.now,
                    verified: true,
                };
                self.credentials.insert(hash.clone(), credential);
                hash
            })
        });
        let version = self.versions;
        self.put(Some(Secret { version, token, kept: None, spoilt: false, put_back }), true);
        self.note();
    }

    /// Deletes the Secret. If writes have short flights, none of them creates the Secret again: the
    /// decision for a deletion of the TokenRotation does not wait for such a write.
    pub(super) fn delete_secret(&mut self) {
        if self.has_short_flights {
            self.in_flight.retain(|flight| !flight.replaces.is_empty());
        }
        self.put(None, true);
    }

    pub(super) fn mend(&mut self) {
        if self.secret.as_ref().is_some_and(|secret| secret.spoilt) {
            self.versions += 1;
            let version = self.versions;
            self.secret.iter_mut().for_each(|secret| {
                secret.spoilt = false;
                secret.version = version;
            });
        }
    }

    pub(super) fn by_hand(&mut self) {
        let held = self.secret.as_ref().and_then(|secret| secret.token.clone());
        if let Some(credential) = held.and_then(|hash| self.credentials.get_mut(&hash))
            && credential.ours
        {
            credential.alive = false;
            credential.excused = true;
        }
    }
}
