//! Allowed uses of a Rancher's API key.
//!
//! Invariants:
//!
//! * The key is sent only to the URL that the key's own Secret names.
//! * A cloud credential gets a token of the key's user only if that user made the cloud credential,
//!   or if the spec allows that another user made it. The reason is that the user who made a cloud
//!   credential can read the token in it.
//! * A token that the operator puts into a cloud credential is valid for one cluster only.

use api::ANNOTATION_RANCHER_URL;

/// Maximum length, in characters, of a URL from the annotation [`ANNOTATION_RANCHER_URL`] in a
/// message. A longer URL is cut.
const LONGEST_URL: usize = 200;

/// Cloud credential that is to get a token of the API key's user.
#[derive(Clone, Copy, Debug)]
pub struct TokenGrant<'a> {
    /// Name of the cloud credential's Secret.
    pub credential: &'a str,
    /// ID of the user who made the cloud credential, and may read it.
    pub owner: &'a str,
    /// ID of the user to whom the API key belongs.
    pub user: &'a str,
    /// Whether the spec allows that the owner and the API key's user differ.
    pub allowed: bool,
}

impl TokenGrant<'_> {
    /// Reason why the cloud credential gets no token. `None`: the cloud credential gets a token.
    pub fn fault(&self) -> Option<String> {
        let Self { credential, owner, user, allowed } = *self;
        (owner != user && !allowed).then(|| {
            format!(
                "spec.rancher.minter: the API key belongs to the user {user:?}, but the cloud credential {credential:?} \
                 to the user {owner:?} (its annotation field.cattle.io/creatorId), who could read a token of {user:?} \
                 in it: use an API key of {owner:?}, or set spec.source.rancherToken.allowOtherUser to true"
            )
        })
    }
}

/// ID of the cluster to which a cloud credential's token is limited. The error says that neither
/// `wanted` nor `server` gives a cluster. `wanted`: cluster that the spec names. `server`: URL in
/// the cloud credential's kubeconfig. This URL gives the cluster if `wanted` is `None`.
pub fn scope(wanted: Option<&str>, server: &str) -> Result<String, String> {
    wanted.or_else(|| cluster(server)).map(str::to_owned).ok_or_else(|| {
        "its kubeconfig must lead to https://RANCHER/k8s/clusters/ID, so that its token can be limited to that \
         cluster; or name a cluster in spec.source.rancherToken.cluster"
            .to_owned()
    })
}

/// ID of the cluster in a URL of the form `https://RANCHER/k8s/clusters/ID`. `None`: the URL has
/// another form.
fn cluster(server: &str) -> Option<&str> {
    let (_, path) = server.split_once("://")?.1.split_once('/')?;
    let id = path.strip_prefix("k8s/clusters/")?;
    let id = id.strip_suffix('/').unwrap_or(id);
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (!id.is_empty() && id.chars().all(fits)).then_some(id)
}

/// Secret with an API key, and the URLs that limit where the key may be sent.
#[derive(Clone, Copy, Debug)]
pub struct MinterSecret<'a> {
    /// Name of the Secret.
    pub secret: &'a str,
    /// URL in the Secret's annotation [`ANNOTATION_RANCHER_URL`]. `None`: the Secret does not have
    /// this annotation.
    pub named: Option<&'a str>,
    /// URL in `spec.rancher.url`. `None`: the spec sets no URL.
    pub wanted: Option<&'a str>,
    /// URL that the Secret's annotation had when the API key was used first. The TokenRotation's
    /// status records this URL. It counts only if the spec sets no URL. `None`: not recorded yet.
    pub first: Option<&'a str>,
}

impl MinterSecret<'_> {
    /// URL to which the API key may be sent. The error says why the key is not sent.
    pub fn address(&self) -> Result<String, String> {
        let begin = format!("spec.rancher.minter: the Secret {:?}", self.secret);
        let annotation = format!("its annotation {ANNOTATION_RANCHER_URL}");
        let named = self.named.map(str::trim).filter(|named| !named.is_empty());
        let Some(named) = named else {
            let right = self.wanted.or(self.first).map_or_else(
                || "the URL of its Rancher, such as \"https://rancher.example.com\"".to_owned(),
                |url| format!("{url:?}"),
            );
            return Err(format!(
                "{begin} does not say where its API key may be sent: {annotation} must be {right}"
            ));
        };
        let short: String = named.chars().take(LONGEST_URL).collect();
        let has = format!("{begin} has an API key for {short:?}, as {annotation} says");
        match (self.wanted, self.first) {
            (Some(url), _) | (None, Some(url)) if is_same_url(named, url) => Ok(url.to_owned()),
            (Some(_), _) => Err(format!(
                "{has}: the key is not sent to spec.rancher.url, which must be the same URL"
            )),
            (None, Some(url)) => Err(format!(
                "{has}, but this TokenRotation is for {url:?}: use an API key of that Rancher, or make another \
                 TokenRotation for the other Rancher"
            )),
            (None, None) if is_server(named) => Ok(named.trim_end_matches('/').to_owned()),
            (None, None) => Err(format!(
                "{has}: the URL must be https://HOST or https://HOST:PORT, with nothing after it"
            )),
        }
    }
}

/// Whether a URL has the form that a spec allows: `https://HOST` or `https://HOST:PORT`. One slash
/// at its end is allowed.
pub(super) fn is_server(url: &str) -> bool {
    let host = url.strip_prefix("https://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    host.is_some_and(|host| {
        !host.is_empty() && !host.contains(|c: char| "/@?#".contains(c) || c.is_whitespace())
    })
}

/// Whether two URLs name the same Rancher. Differences in case, and slashes at the end, are
/// ignored.
pub fn is_same_url(one: &str, other: &str) -> bool {
    one.trim_end_matches('/').eq_ignore_ascii_case(other.trim_end_matches('/'))
}

#[cfg(test)]
mod tests;
