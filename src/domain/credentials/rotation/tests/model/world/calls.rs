//! Calls of a worker to the issuer and to the target.

use super::*;

impl World {
    pub(super) fn mint(&mut self, name: &str) -> Result<UnpublishedCredential, String> {
        if !self.named.contains(name) {
            return Err(format!("{name} is made without a recorded name"));
        }
        let readable = self.plan.source.is_some_and(|source| source.readable);
        let there = |c: &Credential| c.name == name && c.alive;
        let again = self.credentials.iter().find(|(_, c)| there(c)).map(|(hash, _)| hash.clone());
        let hash = again.filter(|_| readable).unwrap_or_else(|| {
            self.minted += 1;
            format!("{name}/{}", self.minted)
        });
        let expires = (!readable).then_some(self.now + LIFE);
        let credential = self.credentials.entry(hash.clone()).or_insert(Credential {
            name: name.to_owned(),
            alive: true,
            excused: false,
            leaked: false,
            ours: true,
            expires,
            issued: self.now,
            verified: false,
        });
        let made =
            MintedCredential { hash, issued: credential.issued, expires: credential.expires };
        Ok(UnpublishedCredential { name: name.to_owned(), made: Some(made), verified: false })
    }

    pub(super) fn verify(&mut self, who: usize) -> Result<(), String> {
        let unpublished = self.workers[who].unpublished.as_mut().ok_or("nothing in hand")?;
        let made = unpublished.made.as_ref().ok_or("nothing made")?;
        let credential = self.credentials.get_mut(&made.hash).ok_or("unknown credential")?;
        credential.verified = credential.alive;
        unpublished.verified = credential.alive;
        Ok(())
    }

    pub(super) fn publish(
        &mut self,
        state: &RotationState,
        keep: bool,
        trouble: Option<Trouble>,
    ) -> Result<(), String> {
        let pending = state.pending.as_ref().ok_or("no credential is pending")?;
        let publishing = pending.publishing.as_ref().ok_or("not recorded as published")?;
        let hash = publishing.made.hash.clone();
        if !self.credentials[&hash].verified {
            return Err(format!("{hash} is published and was not tested"));
        }
        self.in_flight.push(Flight {
            replaces: publishing.replaces.clone(),
            hash,
            keep,
            sent: self.now,
            for_leak: pending.requests.leaked.is_some(),
        });
        if trouble != Some(Trouble::Hang) {
            self.land();
        }
        Ok(())
    }

    /// Carries out the newest write that is under way to the target.
    pub(super) fn land(&mut self) {
        let Some(flight) = self.in_flight.pop() else { return };
        if self.has_short_flights && self.now >= flight.sent + SURELY_ANSWERED {
            return;
        }
        let version = self.secret.as_ref().map(|secret| secret.version.to_string());
        let fits =
            version.unwrap_or_default() == flight.replaces || self.has(Fault::PublishUnguarded);
        if !fits || self.secret.as_ref().is_some_and(|secret| secret.spoilt) {
            return;
        }
        let old = self.secret.clone().unwrap_or_default();
        self.excuse(&old, &flight);
        self.versions += 1;
        let (version, kept) = (self.versions, old.token.filter(|_| flight.keep));
        let token = Some(flight.hash);
        self.put(Some(Secret { version, token, kept, ..Secret::default() }), false);
        self.note();
    }

    /// Excuses the end of credentials that a publication may take out of the target before their
    /// overlap is over:
    ///
    /// * all credentials, if a report of a leak asked for the publication;
    /// * the kept credential, if the credential in use ends before the overlap does. The operator
    ///   counts the overlap from the time at which it observed the last publication. So the overlap
    ///   may end up to one overlap later.
    fn excuse(&mut self, old: &Secret, flight: &Flight) {
        if !self.prunes() {
            return;
        }
        if flight.for_leak {
            for hash in old.token.iter().chain(&old.kept).filter(|hash| **hash != flight.hash) {
                if let Some(credential) = self.credentials.get_mut(hash) {
                    credential.leaked = true;
                }
            }
            return;
        }
        let (Some(token), Some(kept)) = (&old.token, &old.kept) else { return };
        let end = self.credentials[token].expires;
        let until = self.held.get(kept).map(|until| until + 2 * (OVERLAP + 1));
        let ends_first = end.zip(until).is_some_and(|(end, until)| end <= until);
        if let Some(credential) = self.credentials.get_mut(kept).filter(|_| ends_first) {
            credential.excused = true;
        }
    }

    /// Whether the issuer deletes a credential that the target no longer names. An issuer that is
    /// separate from the target does not know what the target names.
    fn prunes(&self) -> bool {
        self.plan.source.is_some_and(|source| source.prunes && !source.is_apart)
    }

    /// Hashes of the credentials that the Secret names.
    fn named_in_secret(&self) -> BTreeSet<String> {
        let secret = self.secret.iter();
        secret.flat_map(|secret| secret.token.iter().chain(&secret.kept)).cloned().collect()
    }

    /// Replaces the Secret. If the issuer prunes, it deletes the credentials that the Secret does
    /// not name any more. `by_hand`: whether a person replaces the Secret. The end of a credential
    /// is then excused.
    pub(super) fn put(&mut self, secret: Option<Secret>, by_hand: bool) {
        let before = self.named_in_secret();
        self.secret = secret;
        if !self.prunes() {
            return;
        }
        for hash in before.difference(&self.named_in_secret()) {
            if let Some(credential) = self.credentials.get_mut(hash).filter(|c| c.alive) {
                credential.alive = false;
                credential.excused |= by_hand;
            }
        }
    }

    /// Removes the kept credential from the target. The write is refused if the target has changed
    /// since it was read. `seen`: result of that read.
    pub(super) fn drop_kept(&mut self, seen: &ObservedState) {
        let TargetState::There { version, .. } = &seen.target else { return };
        let is_same = |secret: &&Secret| !secret.spoilt && secret.version.to_string() == *version;
        let Some(secret) = self.secret.as_ref().filter(is_same) else { return };
        let secret = Secret { version: self.versions + 1, kept: None, ..secret.clone() };
        self.versions += 1;
        self.put(Some(secret), false);
    }

    /// Revokes a credential for the worker `who`, if a second read of the target leads to the same
    /// decision.
    pub(super) fn revoke(&mut self, who: usize, name: &str) {
        self.look(who);
        let Some((state, _, seen)) = self.workers[who].looked.clone() else { return };
        if self.decide(who, &state, &seen) != RotationAction::Revoke(name.to_owned()) {
            return;
        }
        // While the target is unfit, a deletion revokes by time alone, because nothing shows what
        // the target holds.
        let is_unfit = self.secret.as_ref().is_some_and(|secret| secret.spoilt);
        let is_excused = self.plan.deleting.is_some() && is_unfit;
        for credential in self.credentials.values_mut().filter(|c| c.name == name && c.ours) {
            credential.alive = false;
            credential.excused |= is_excused;
        }
        // The worker must read again, because its last read still has the revoked credential.
        self.workers[who].looked = None;
    }
}
