//! Life cycle of admission's serving certificates and of the certificate authorities that sign
//! them: when each is made, trusted, used and removed. The API server trusts an authority by the
//! two webhook configurations and by the conversion configuration in LoadBalancer's CRD.
//!
//! Invariants:
//! * A replica that serves a valid and trusted certificate replaces it by the one in the Secret
//!   only after every webhook and conversion configuration trusts the authority of the new one. Any
//!   other replica serves the certificate in the Secret at once.
//! * The next authority signs only after every such configuration has trusted it for a while.
//! * An authority that has signed a certificate stays trusted until the authority has expired.
//!   Exception: the Secret keeps at most 8 previous authorities.
//!
//! By these invariants, the API server still accepts the certificate of a replica that learns of a
//! change late.
//!
//! Times are offsets from the Unix epoch. The caller makes the keys and carries out the steps.

use std::collections::BTreeSet;
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);
/// Lifetime of a certificate authority.
pub const AUTHORITY_LIFE: Duration = DAY.saturating_mul(365);
/// Lifetime of a serving certificate.
pub const SERVING_LIFE: Duration = DAY.saturating_mul(90);
/// Time by which a certificate is backdated: its validity starts 730 days before its creation. The
/// time is long, because the clock of an API server or a replica may be wrong by a year.
pub const BACKDATED: Duration = DAY.saturating_mul(730);
/// Divisor for a lifetime. An authority or a serving certificate is due for replacement when a
/// third of its lifetime is left.
const DUE_PART: u32 = 3;
/// Shortest time that API servers get to learn of a new authority. The time begins when this
/// replica has observed that every webhook and conversion configuration trusts the authority.
pub const SETTLING: Duration = Duration::from_secs(2);
/// Longest time that API servers get to learn of a new authority. The time is shorter if the
/// present authority or the serving certificate expires soon.
const LONGEST_SETTLING: Duration = Duration::from_mins(10);
/// Minimum gain of a renewal: the new certificate must end later than the present one by at least
/// this time. Otherwise no new certificate is signed.
const LEAST_GAIN: Duration = Duration::from_mins(1);
/// Maximum number of names in a serving certificate.
const MOST_NAMES: usize = 20;

/// Facts about a certificate authority in admission's Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAuthority {
    /// End of the authority's validity, as the time since the Unix epoch.
    pub not_after: Duration,
    /// Whether the authority can sign: its private key is stored and matches its certificate, and
    /// the certificate's subject has exactly one attribute.
    pub signs: bool,
}

/// Facts about the serving certificate in admission's Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCertificate {
    /// End of the certificate's validity, as the time since the Unix epoch.
    pub not_after: Duration,
    /// DNS names and IP addresses that the certificate is valid for.
    pub names: BTreeSet<String>,
    /// Whether the private key matches the certificate, and the present authority has signed the
    /// certificate.
    pub fits: bool,
}

/// Facts about admission's Secret, in which all replicas store the authorities and the serving
/// certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSecret {
    /// Present authority: it signs serving certificates now.
    pub ca: StoredAuthority,
    /// Authority that will sign next, after every webhook and conversion configuration trusts this
    /// authority. `None`: no such authority was made yet.
    pub next: Option<StoredAuthority>,
    /// Serving certificate. `None`: none is stored.
    pub serving: Option<StoredCertificate>,
    /// End of validity of each previous authority, as the time since the Unix epoch. A previous
    /// authority has signed before, and does not sign now.
    pub previous: Vec<Duration>,
    /// Whether the Secret has the authority of the certificate that this replica serves now. If
    /// this replica serves no valid certificate, the value is `true`.
    pub knows_ours: bool,
}

/// Inputs for the choice of a step, besides the content of the Secret.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    /// Present time, as the time since the Unix epoch.
    pub now: Duration,
    /// Head start: this replica replaces a serving certificate, or makes the next authority, this
    /// long before the replacement is due. The head start is random, so that not all replicas act
    /// at once.
    pub early: Duration,
    /// Names by which the API server may call this replica.
    pub names: &'a BTreeSet<String>,
    /// Duration for which every webhook and conversion configuration has been observed to trust the
    /// next authority. `None`: at least one configuration does not trust the next authority, or
    /// there is no next authority.
    pub trusted_for: Option<Duration>,
}

/// The next action on admission's Secret. Each action except `Wait` is one write. The write fails
/// if another replica wrote the Secret first. A replica takes one action at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateStep {
    /// Write the whole content of the Secret, because the Secret holds no usable authority. The
    /// content is new, or is the content that this replica has read before.
    Start,
    /// Add the authority that signed this replica's certificate to the previous authorities in the
    /// Secret.
    Remember,
    /// Make a serving certificate for these names, signed by the present authority.
    Renew(BTreeSet<String>),
    /// Make the next authority. It does not sign yet.
    Begin,
    /// Make the next authority the present one, and sign a new serving certificate with it. The
    /// former present authority becomes a previous one.
    Switch,
    /// Remove previous authorities that have expired.
    Forget,
    /// Write nothing before this time, unless the Secret, a webhook configuration or the conversion
    /// configuration changes. The time counts from the Unix epoch.
    Wait(Duration),
}

/// Decides the next action on admission's Secret. `stored`: content of the Secret; `None`: the
/// Secret has no usable content. `at`: present time and the other inputs.
pub fn plan(stored: Option<&CertificateSecret>, at: StepInput<'_>) -> CertificateStep {
    let Some(stored) = stored else { return CertificateStep::Start };
    if !stored.knows_ours {
        return CertificateStep::Remember;
    }
    let ca_is_good = stored.ca.signs && stored.ca.not_after > at.now;
    if ca_is_good && let Some(names) = renewal(stored, at) {
        return CertificateStep::Renew(names);
    }
    let mut wake = due(stored.ca.not_after, AUTHORITY_LIFE, at.early);
    match &stored.next {
        Some(next) if next.signs && next.not_after > at.now + SERVING_LIFE / DUE_PART => {
            let patience = patience(stored, at.now);
            match at.trusted_for {
                Some(trusted) if trusted >= patience => return CertificateStep::Switch,
                Some(trusted) => wake = at.now + patience.saturating_sub(trusted),
                // The time of the switch is not known. The caller plans again when all
                // configurations trust the next authority.
                None => wake = at.now + LONGEST_SETTLING,
            }
        }
        Some(_) => return CertificateStep::Begin,
        None if !ca_is_good || wake <= at.now => return CertificateStep::Begin,
        None => {}
    }
    if stored.previous.iter().any(|end| *end <= at.now) {
        return CertificateStep::Forget;
    }
    let ends = stored.previous.iter().copied();
    let serving = stored.serving.iter().map(|s| due(s.not_after, SERVING_LIFE, at.early));
    let next = ends.chain(serving.filter(|due| *due > at.now)).fold(wake, Duration::min);
    CertificateStep::Wait(next)
}

/// End of validity of a serving certificate that an authority signs at the time `now`. `ca`: end of
/// the authority's own validity. All three times count from the Unix epoch.
pub fn serving_end(now: Duration, ca: Duration) -> Duration {
    (now + SERVING_LIFE).min(ca)
}

/// Whether this replica must start to serve the stored certificate now. `true` in these cases:
/// * the certificate that it serves now is not valid or not trusted (`ours` is false);
/// * every webhook and conversion configuration has trusted the authority of the stored certificate
///   for [`SETTLING`].
///
/// `trusted_for`: time of this trust so far. `None`: a configuration does not trust the authority.
pub fn adopt(ours: bool, trusted_for: Option<Duration>) -> bool {
    !ours || trusted_for.is_some_and(|trusted| trusted >= SETTLING)
}

/// Whether a replica that has just started may report that it is ready for calls. `true` in these
/// cases:
/// * no webhook configuration calls the operator yet (`registered` is false). The replica must not
///   wait for one, because the operator registers admission only when a replica is ready;
/// * every webhook and conversion configuration has trusted the authority of the replica's
///   certificate for [`SETTLING`].
///
/// `trusted_for`: time of this trust so far. `None`: a configuration does not trust the authority.
pub fn ready(registered: bool, trusted_for: Option<Duration>) -> bool {
    !registered || trusted_for.is_some_and(|trusted| trusted >= SETTLING)
}

/// Names for a new serving certificate that must be signed now. `None`: the stored serving
/// certificate is not replaced now.
fn renewal(stored: &CertificateSecret, at: StepInput<'_>) -> Option<BTreeSet<String>> {
    let Some(serving) = stored.serving.as_ref().filter(|serving| serving.fits) else {
        return Some(at.names.clone());
    };
    if !at.names.is_subset(&serving.names) {
        // While options of the operator change, replicas may be called by different names. If each
        // replica signed only for its own names, the replicas would replace each other's
        // certificate for ever.
        let both: BTreeSet<String> = serving.names.union(at.names).cloned().collect();
        return Some(if both.len() > MOST_NAMES { at.names.clone() } else { both });
    }
    let gained = serving_end(at.now, stored.ca.not_after).saturating_sub(serving.not_after);
    let is_due = due(serving.not_after, SERVING_LIFE, at.early) <= at.now;
    (is_due && gained >= LEAST_GAIN).then(|| at.names.clone())
}

fn due(end: Duration, life: Duration, early: Duration) -> Duration {
    end.saturating_sub(life / DUE_PART).saturating_sub(early)
}

/// Time that API servers get to learn of the next authority. The time is a tenth of the period
/// until the present authority or the serving certificate expires, whichever expires first.
/// Minimum: `SETTLING`, which also applies if no serving certificate fits. Maximum:
/// `LONGEST_SETTLING`.
fn patience(stored: &CertificateSecret, now: Duration) -> Duration {
    let serving = stored.serving.as_ref().filter(|s| s.fits).map_or(now, |s| s.not_after);
    let left = stored.ca.not_after.min(serving).saturating_sub(now);
    (left / 10).clamp(SETTLING, LONGEST_SETTLING)
}

#[cfg(test)]
mod tests;
