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
            by_hand: false,
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
        record: &RotationRecord,
        keep: bool,
        trouble: Option<Trouble>,
    ) -> Result<(), String> {
        let pending = record.pending.as_ref().ok_or("no credential is pending")?;
        let publishing = pending.publishing.as_ref().ok_or("not recorded as published")?;
        let hash = publishing.made.hash.clone();
        if !self.credentials[&hash].verified {
            return Err(format!("{hash} is published and was not tested"));
        }
        self.in_flight.push((publishing.replaces.clone(), hash, keep));
        if trouble != Some(Trouble::Hang) {
            self.land();
        }
        Ok(())
    }

    /// Carries out the newest write that is under way to the target.
    pub(super) fn land(&mut self) {
        let Some((replaces, hash, keep)) = self.in_flight.pop() else { return };
        let version = self.secret.as_ref().map(|secret| secret.version.to_string());
        let fits = version.unwrap_or_default() == replaces || self.has(Fault::PublishUnguarded);
        if !fits || self.secret.as_ref().is_some_and(|secret| secret.spoilt) {
            return;
        }
        self.versions += 1;
        let old = self.secret.take().and_then(|secret| secret.token);
        let kept = old.filter(|_| keep);
        let version = self.versions;
        self.secret = Some(Secret { version, token: Some(hash), kept, ..Secret::default() });
        self.note();
    }

    /// Revokes a credential for the worker `who`, if a second read of the target leads to the same
    /// decision.
    pub(super) fn revoke(&mut self, who: usize, name: &str) {
        self.look(who);
        let Some((record, _, seen)) = self.workers[who].looked.clone() else { return };
        if self.decide(who, &record, &seen) != RotationAction::Revoke(name.to_owned()) {
            return;
        }
        for credential in self.credentials.values_mut().filter(|c| c.name == name && c.ours) {
            credential.alive = false;
        }
        // The worker must read again, because its last read still has the revoked credential.
        self.workers[who].looked = None;
    }
}
