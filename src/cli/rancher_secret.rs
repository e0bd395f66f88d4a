//! The `rancher-secret` command: tests an API key of a Rancher, and prints the Secret that holds
//! the key. With `--cloud-credential`, the command also prints:
//!
//! * the TokenRotation by which the operator puts a ServiceAccount's token into the cloud
//!   credential
//! * a new ServiceAccount and its rights, unless `--service-account` names an existing account
//! * a TokenRotation that renews the API key, if the key expires and may list tokens
//!
//! Invariants:
//!
//! * The API key comes from standard input. It goes to the Rancher at `--url` and to standard
//!   output, and nowhere else.
//! * The API key is sent only to a server whose certificate was verified.
//! * No Secret is printed before the API key has worked.

use std::io::{IsTerminal as _, Read as _, Write as _};

use anyhow::Context as _;

use crate::domain::credentials::guest_account::RefusalReasons;
use crate::domain::credentials::rancher_secret::{
    AUTHORITY, AccountOptions, RancherSecretOptions, authority, report, unknown_authority,
};
use crate::domain::credentials::rotation::TargetState;
use crate::domain::credentials::secret_text::SecretText;
use crate::rancher::{IssuedTokens, RancherError, RancherIssuer, shown};

const NOT_ACCEPTED: &str = "standard input: the API key is not accepted: it is unknown, has \
                            expired, is disabled or is for one cluster only. Make another one in \
                            Rancher's UI, without a scope";
/// Maximum length of the input, in bytes. Every API key is shorter than this.
const LONGEST_KEY: u16 = 4096;

/// Options of `rancher-secret`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RancherSecretArgs {
    /// URL of Rancher, as in its setting server-url.
    #[arg(long)]
    url: String,
    /// Checksum of Rancher's certificate authority: the SHA-256, in hexadecimal. It is the value of
    /// --ca-checksum in a registration command of Rancher's UI. Without this option, a public
    /// authority must have signed Rancher's certificate.
    #[arg(long)]
    ca_checksum: Option<String>,
    /// Namespace of the Secret.
    #[arg(long, short, default_value = "rancher-credentials")]
    namespace: String,
    /// Name of the Secret.
    #[arg(long, default_value = "rancher")]
    name: String,
    /// Cloud credential, such as cc-abcde, that gets the token of a ServiceAccount instead of a
    /// token of Rancher. The TokenRotation is then printed too, and also the account with its
    /// rights, unless --service-account names an existing account.
    #[arg(long, value_name = "NAME")]
    cloud_credential: Option<String>,
    /// URL at which Rancher reaches this cluster, such as https://192.168.5.10:6443. Only with
    /// --cloud-credential.
    #[arg(long, value_name = "URL", requires = "cloud_credential")]
    server: Option<String>,
    /// Namespace in which the new ServiceAccount may create virtual machines. Only with
    /// --cloud-credential.
    #[arg(long, value_name = "NAMESPACE", requires = "cloud_credential")]
    vm_namespace: Option<String>,
    /// Existing ServiceAccount in --namespace, in place of a new one. Only with --cloud-credential.
    #[arg(long, value_name = "NAME", requires = "cloud_credential")]
    service_account: Option<String>,
}

impl RancherSecretArgs {
    fn behind(&self) -> Option<AccountOptions<'_>> {
        Some(AccountOptions {
            credential: self.cloud_credential.as_deref()?,
            server: self.server.as_deref(),
            vm_namespace: self.vm_namespace.as_deref(),
            account: self.service_account.as_deref(),
            namespace: &self.namespace,
            secret: &self.name,
        })
    }
}

/// Reads the API key, tests it, and prints the Secret. With `--cloud-credential`, also prints the
/// other objects that the header of this module lists.
pub(super) async fn run(args: RancherSecretArgs) -> anyhow::Result<()> {
    let key = key()?;
    let RancherSecretArgs { url, ca_checksum, namespace, name, .. } = &args;
    let checksum = ca_checksum.as_deref();
    let order = RancherSecretOptions { url, checksum, namespace, name, key: &key };
    let behind = args.behind();
    let mut faults = order.faults();
    faults.extend(behind.iter().flat_map(AccountOptions::faults));
    if !faults.is_empty() {
        return Err(RefusalReasons(faults).into());
    }
    let authority = match checksum {
        Some(checksum) => {
            let shown = shown(url, AUTHORITY).await;
            let shown = shown.map_err(|error| refused(format!("--url {url:?}: {error}")))?;
            Some(authority(shown, checksum).map_err(refused)?)
        }
        None => None,
    };
    let issuer = RancherIssuer::new(url, authority.as_deref(), key.clone());
    let issuer = issuer.map_err(|why| refused(format!("--url {url:?}: {why}")))?;
    let known = match issuer.issued().await {
        Ok(known) => known,
        // With `--cloud-credential`, an API key needs no right to list tokens. A key that may read
        // and write the cloud credential is enough.
        Err(RancherError::Unauthorized(_)) if behind.is_some() => IssuedTokens::unlisted(),
        Err(error) => return Err(refused(why(&args, &error).await).into()),
    };
    let mut said = Vec::new();
    if let Some(behind) = &behind
        && let Err(why) = reads(&issuer, &known, behind.credential).await
    {
        return Err(refused(why).into());
    }
    if !known.user.is_empty() {
        said.push(tried(&issuer, &known, &key).await.map_err(|error| {
            refused(format!("--url {url:?}: the API key works, but a further read failed: {error}"))
        })?);
    }
    let text = order.text(authority.as_deref());
    let mut more = String::new();
    if let Some(behind) = &behind {
        let ends = issuer.life(&key, &known).await.is_ok_and(|life| life.claims.expires.is_some());
        more = behind.text(ends && !known.user.is_empty());
        said.push(behind.report());
    }
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.write_all(more.as_bytes()));
    written.and_then(|()| out.flush()).context("cannot write to standard output")?;
    writeln!(std::io::stderr(), "{}", said.join("\n")).context("cannot write to standard error")
}

/// Checks that the API key may read the cloud credential `credential`, and that this cloud
/// credential can hold a token.
async fn reads(
    issuer: &RancherIssuer,
    known: &IssuedTokens,
    credential: &str,
) -> Result<(), String> {
    let option = format!("--cloud-credential {credential:?}");
    match issuer.read_target(credential, known).await {
        Ok(view) => match view.target {
            TargetState::Unfit(why) => Err(format!("{option}: {why}")),
            _ => Ok(()),
        },
        Err(RancherError::Unauthorized(_)) => Err(NOT_ACCEPTED.to_owned()),
        Err(error) => Err(format!("{option}: {error}")),
    }
}

/// Reads the API key from standard input, `LONGEST_KEY` bytes at most.
fn key() -> anyhow::Result<SecretText> {
    let input = std::io::stdin();
    if input.is_terminal() {
        let ask = "Paste the API key (Bearer Token), then press Enter and Ctrl-D:";
        writeln!(std::io::stderr(), "{ask}")?;
    }
    let mut text = String::with_capacity(LONGEST_KEY.into());
    let read = input.lock().take(LONGEST_KEY.into()).read_to_string(&mut text);
    let key = SecretText::trimmed(text);
    read.context("standard input: must be the API key alone")?;
    Ok(key)
}

/// Returns a report about the API key, which has already worked: the key's user, the key's expiry,
/// and the cloud credentials that the key can read. `Err`: a read for the report has failed.
async fn tried(
    issuer: &RancherIssuer,
    known: &IssuedTokens,
    key: &SecretText,
) -> Result<String, RancherError> {
    let listed = issuer.credentials().await?;
    let life = issuer.life(key, known).await?;
    Ok(report(&known.user, life.claims.expires, &listed))
}

/// Message for the user about a failed test of the API key. `error`: the failure of the test.
async fn why(args: &RancherSecretArgs, error: &RancherError) -> String {
    let url = &args.url;
    match error {
        RancherError::Unauthorized(_) => NOT_ACCEPTED.to_owned(),
        RancherError::Silent(..) if args.ca_checksum.is_none() => {
            match shown(url, AUTHORITY).await {
                Ok(shown) if shown.contains("BEGIN CERTIFICATE") => unknown_authority(&shown),
                _ => format!("--url {url:?}: {error}"),
            }
        }
        error => format!("--url {url:?}: {error}"),
    }
}

fn refused(why: String) -> RefusalReasons {
    RefusalReasons(vec![why])
}
