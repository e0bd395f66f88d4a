//! The `cloud-config` command: makes, lists, renews and revokes guest clusters' access to
//! Harvester. The command works with the rights of the user who runs it.
//!
//! Invariants:
//!
//! * On this machine, a token is written only to standard output, or to a file that only the file's
//!   owner may read.
//! * All options are checked before anything is written, and the objects of a guest before these
//!   objects are changed.
//! * Every round of changes begins with a read of the current objects. So an interrupted command
//!   continues where it stopped when it is run again.
//!
//! There is no log: each change is reported on standard error.

mod file;
mod options;
mod request;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use chrono::Utc;

use self::options::{CsiRights, OutputKind};
use self::request::RequestedWork;
use crate::domain::credentials::guest_account::list::{GuestCredential, table};
use crate::domain::credentials::guest_account::output::{self, TokenMaterial};
use crate::domain::credentials::guest_account::{
    self, CreationStep, CsiAccess, ExistingObjects, GuestCluster, NamePlaceholder, ObjectRemoval,
    RefusalReasons, RevokeScope, plan, revoke, wanted_token,
};
use crate::domain::credentials::secret_text::SecretText;
use crate::k8s::CallError;
use crate::k8s::client;
use crate::k8s::cloud_config::{GuestCredentials, PATIENCE};
use crate::metrics::Metrics;
use crate::rancher::ServerClient;

/// Maximum number of rounds of one task. A round reads the objects and makes changes. Another round
/// follows if the task has created an object of its plan, or if another process has changed an
/// object.
const ROUNDS: usize = 30;
/// Longest time that Kubernetes may take to fill a token Secret.
const FILLED: Duration = Duration::from_mins(1);
/// Pause between two reads of a token Secret that Kubernetes has not filled yet.
const FILL_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time that the server may take to accept the token of the cloud config.
const CHECKED: Duration = Duration::from_secs(15);

/// Options of `cloud-config`, as users write them. The module `request` checks which options go
/// together.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CloudConfigArgs {
    /// Kubeconfig file of Harvester. Default: the file that the variable KUBECONFIG names, else
    /// ~/.kube/config, else the ServiceAccount of the pod.
    #[arg(long, env = "HGO_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Name of the guest cluster, and of its ServiceAccount.
    #[arg(long)]
    cluster: Option<String>,
    /// Namespace of the guest cluster's VMs.
    #[arg(long, short)]
    namespace: Option<String>,
    /// All namespaces. Allowed only with --list, or to revoke the credentials of guests that no
    /// longer exist (--revoke gone).
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Form of the output.
    #[arg(long, short, value_enum, default_value_t = OutputKind::Kubeconfig)]
    output: OutputKind,
    /// File to write to instead of standard output. Only the file's owner may read it.
    #[arg(long)]
    out: Option<PathBuf>,
    /// URL at which the guest's nodes reach Harvester. Default: https://VIP:6443, with the VIP from
    /// the ConfigMap harvester-system/vip.
    #[arg(long)]
    server: Option<String>,
    /// File in PEM with the certificate authorities of the server in --server. Default: the
    /// cluster's own authorities.
    #[arg(long)]
    certificate_authority: Option<PathBuf>,
    /// Rights of the guest's CSI driver. Default: narrow for a new guest; otherwise the rights that
    /// the guest has.
    #[arg(long, value_enum)]
    csi: Option<CsiRights>,
    /// Makes another token and prints it. Earlier tokens stay valid until they are revoked.
    #[arg(long)]
    rotate: bool,
    /// Credentials to revoke: old (all tokens but the newest), all (tokens, rights and account),
    /// gone (the same as all, for guests that no longer exist), or the name of a token Secret. With
    /// --rotate, the new token is printed first.
    #[arg(long, value_name = "WHAT")]
    revoke: Option<String>,
    /// Number of days. A guest without VMs counts as gone if its credential was neither made nor
    /// used for this long, and no TokenRotation makes its tokens.
    #[arg(long, default_value_t = 7)]
    unused_days: u16,
    /// Lists credentials with age and last use, and whether their guest exists.
    #[arg(long)]
    list: bool,
    /// Prints the changes without making them.
    #[arg(long)]
    dry_run: bool,
    /// Prints the cloud config without testing it. Needed if this machine cannot reach --server.
    #[arg(long)]
    skip_check: bool,
}

/// Executes the request that the options express.
pub(super) async fn run(args: CloudConfigArgs) -> anyhow::Result<()> {
    let work = request::read(&args)?;
    let metrics = Metrics::new()?;
    let config = client::config(args.kubeconfig.as_deref(), PATIENCE).await?;
    let client = client::through(config, &metrics)?;
    let hand = CredentialCommands { api: GuestCredentials::new(client), args };
    if let Some(namespace) = &hand.args.namespace {
        ensure!(
            hand.api.has_namespace(namespace).await?,
            "--namespace {namespace:?}: does not exist: give the namespace of the guest's VMs"
        );
    }
    match work {
        RequestedWork::List => hand.list().await,
        RequestedWork::Make { guest, server, authority, revoke } => {
            hand.make(&guest, server, authority, revoke.as_ref()).await
        }
        RequestedWork::Revoke(guest, what) => hand.revoke(&guest, &what, None).await,
        RequestedWork::RevokeGone(guest) => hand.revoke_gone(guest.as_ref()).await,
    }
}

struct CredentialCommands {
    api: GuestCredentials,
    args: CloudConfigArgs,
}

impl CredentialCommands {
    async fn list(&self) -> anyhow::Result<()> {
        let credentials = self.credentials().await?;
        print(&table(&credentials, Utc::now().timestamp(), self.args.unused_days.into()))
    }

    /// Credentials in the namespace of `--namespace`, or in all namespaces. With `--cluster`, only
    /// those of this guest cluster.
    async fn credentials(&self) -> anyhow::Result<Vec<GuestCredential>> {
        let namespace = self.args.namespace.as_deref();
        let mut survey = self.api.survey(namespace).await?;
        match self.api.machines(namespace).await {
            Ok(machines) => survey.machines = Some(machines),
            Err(error) => {
                report_progress(&format!("cannot list VMs to see which guests exist: {error:#}"))?;
            }
        }
        let mut credentials = survey.credentials(namespace);
        if let Some(cluster) = &self.args.cluster {
            credentials.retain(|credential| credential.guest.cluster == *cluster);
        }
        Ok(credentials)
    }

    /// Makes the guest's access, and prints its cloud config. The parameters are as in
    /// [`RequestedWork::Make`].
    async fn make(
        &self,
        guest: &GuestCluster,
        server: Option<String>,
        authority: Option<Vec<u8>>,
        revoke: Option<&RevokeScope>,
    ) -> anyhow::Result<()> {
        let args = &self.args;
        // Everything that can be refused is checked before the first write.
        let server = match server {
            Some(server) => server,
            None => output::default_server(self.api.vip().await?.as_deref()).map_err(refused)?,
        };
        let stamp = Utc::now().format("%Y%m%d%H%M%S%3f").to_string();
        let names = [guest.token(), wanted_token(guest, &ExistingObjects::default(), &stamp, true)];
        let found = self.api.found(guest, &names).await?;
        let token = wanted_token(guest, &found, &stamp, args.rotate);
        if let Some(what) = revoke {
            guest_account::revoke(guest, &found, what, Some(&token))?;
        }
        let csi = guest_account::csi(guest, &found, args.csi.map(CsiAccess::from));
        if csi == CsiAccess::None && args.csi.is_none() {
            report_progress("the guest has no rights for a CSI driver: --csi narrow grants them")?;
        }
        let found = self.complete(guest, csi, &token, &names, found).await?;
        for note in guest_account::too_much(guest, &found) {
            report_progress(&note)?;
        }
        if args.dry_run {
            print(&format!("would print the cloud config with the token of Secret {token}\n"))?;
        } else {
            let mut material = self.filled(guest, &token).await?;
            if let Some(authority) = authority {
                material.authority = authority;
            }
            if !args.skip_check {
                let uid = found.tokens.iter().find(|there| there.name == token);
                let uid = uid.map(|there| there.uid.as_str()).unwrap_or_default();
                let passing = self.api.passing(guest, (&token, uid)).await?;
                try_out(guest, &server, &material.authority, &passing).await?;
            }
            let (form, has_driver) = (args.output.into(), csi != CsiAccess::None);
            let text = output::text(form, guest, &server, &material, has_driver);
            match &args.out {
                Some(path) => {
                    file::write(path, &text)
                        .with_context(|| format!("--out {}: cannot write", path.display()))?;
                    report_progress(&format!("wrote {}", path.display()))?;
                }
                None => print(&text)?,
            }
        }
        match revoke {
            Some(what) => self.revoke(guest, what, Some(&token)).await,
            None => self.write_placeholder(guest, Some(&token)).await,
        }
    }

    /// Creates the objects that the guest's access lacks. Returns all objects of the access. With
    /// `--dry-run`, only prints the objects that are missing, and returns `found`.
    async fn complete(
        &self,
        guest: &GuestCluster,
        csi: CsiAccess,
        token: &str,
        names: &[String],
        mut found: ExistingObjects,
    ) -> anyhow::Result<ExistingObjects> {
        for _ in 0..ROUNDS {
            let steps = plan(guest, csi, token, &found)?;
            if self.args.dry_run {
                for step in &steps {
                    print(&format!("would create {}\n", step.object))?;
                }
                return Ok(found);
            }
            let Some(step) = steps.first() else { return Ok(found) };
            self.create(step).await?;
            found = self.api.found(guest, names).await?;
        }
        Err(always_changed(guest))
    }

    async fn create(&self, step: &CreationStep) -> anyhow::Result<()> {
        match self.api.create(&step.object, &step.body).await {
            Ok(()) => report_progress(&format!("created {}", step.object)),
            // Another process created the object first. The next round reads that object.
            Err(CallError::Conflict(_)) => Ok(()),
            Err(error) => Err(error).with_context(|| {
                format!("cannot create {}: run the command again to continue", step.object)
            }),
        }
    }

    /// Waits until Kubernetes has filled the token Secret, and returns its content.
    async fn filled(&self, guest: &GuestCluster, token: &str) -> anyhow::Result<TokenMaterial> {
        let namespace = &guest.namespace;
        let filled = async {
            loop {
                if let Some(material) = self.api.material(namespace, token).await? {
                    return anyhow::Ok(material);
                }
                tokio::time::sleep(FILL_POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(FILLED, filled).await.with_context(|| {
            format!(
                "Secret {namespace}/{token} has no token after {FILLED:?}: see whether \
                 kube-controller-manager runs, then run the command again"
            )
        })?
    }

    async fn revoke(
        &self,
        guest: &GuestCluster,
        what: &RevokeScope,
        kept: Option<&str>,
    ) -> anyhow::Result<()> {
        let names = [guest.token()];
        for _ in 0..ROUNDS {
            let found = self.api.found(guest, &names).await?;
            let revocation = revoke(guest, &found, what, kept)?;
            let mut changed = false;
            for removal in &revocation.removals {
                changed |= self.remove(removal).await?;
            }
            if changed {
                continue;
            }
            if revocation.removals.is_empty() {
                report_progress("nothing to revoke")?;
            }
            if !matches!(what, RevokeScope::All | RevokeScope::Gone) {
                self.write_placeholder(guest, kept).await?;
            }
            ensure!(revocation.left.is_empty(), "not removed: {}", revocation.left.join("\n"));
            return Ok(());
        }
        Err(always_changed(guest))
    }

    /// Removes an object. Returns `true` if another process changed the object after this command
    /// read it. Then the object is not removed, and the caller must read it again.
    async fn remove(&self, removal: &ObjectRemoval) -> anyhow::Result<bool> {
        if self.args.dry_run {
            print(&format!("would delete {}\n", removal.object))?;
            return Ok(false);
        }
        match self.api.remove(removal).await {
            Ok(()) => report_progress(&format!("deleted {}", removal.object)).map(|()| false),
            // Another process removed the object, or Kubernetes deleted the object with its owner.
            Err(CallError::NotFound(_)) => Ok(false),
            Err(CallError::Conflict(_)) => Ok(true),
            Err(error) => Err(error).with_context(|| {
                format!("cannot delete {}: run the command again to continue", removal.object)
            }),
        }
    }

    async fn revoke_gone(&self, guest: Option<&GuestCluster>) -> anyhow::Result<()> {
        let credentials = self.credentials().await?;
        if let (Some(GuestCluster { namespace, cluster }), []) = (guest, &credentials[..]) {
            report_progress(&format!("guest cluster {namespace}/{cluster} has no credential"))?;
        }
        let now = Utc::now().timestamp();
        let mut left = Vec::new();
        for credential in &credentials {
            let GuestCluster { namespace, cluster } = &credential.guest;
            match credential.reason_to_keep(now, self.args.unused_days.into()) {
                Some(why) if guest.is_some() => {
                    bail!(
                        "--revoke gone: guest cluster {namespace}/{cluster} is not gone: {why}. To \
                         revoke its credential anyway, give --revoke all"
                    )
                }
                Some(_) => {}
                None => {
                    if let Err(error) =
                        self.revoke(&credential.guest, &RevokeScope::Gone, None).await
                    {
                        left.push(format!("{namespace}/{cluster}: {error:#}"));
                    }
                }
            }
        }
        ensure!(left.is_empty(), "{}", left.join("\n"));
        Ok(())
    }

    /// Creates or corrects the guest's placeholder, a Secret that has the name of the guest's first
    /// token Secret while that token Secret is missing. `kept`: name of the token Secret to copy
    /// into the placeholder. `None`: the one with the newest valid token. If no token is valid,
    /// nothing is copied.
    async fn write_placeholder(
        &self,
        guest: &GuestCluster,
        kept: Option<&str>,
    ) -> anyhow::Result<()> {
        for _ in 0..ROUNDS {
            let found = self.api.found(guest, &[guest.token()]).await?;
            let newest = found.valid(guest).last().map(|token| token.name.clone());
            let kept = kept.or(newest.as_deref());
            let Some(NamePlaceholder { old, copies, step: CreationStep { object, body } }) =
                guest_account::name_placeholder(guest, &found, kept)
            else {
                return Ok(());
            };
            let what = match &copies {
                Some(from) => format!("a copy of Secret {from}"),
                None => "no token".to_owned(),
            };
            if self.args.dry_run {
                return print(&format!("would put {what} into {object}\n"));
            }
            if let Some(old) = old
                && self.remove(&old).await?
            {
                continue;
            }
            let created = match &copies {
                Some(from) => self.api.copy(&object, &body, from).await,
                None => self.api.create(&object, &body).await,
            };
            match created {
                Ok(()) => {
                    return report_progress(&format!(
                        "{object} now holds {what}, for clients that read this name"
                    ));
                }
                Err(CallError::Conflict(_) | CallError::NotFound(_)) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {object}")),
            }
        }
        Err(always_changed(guest))
    }
}

/// Tests that the server in the cloud config accepts the token as a token of the guest's account.
async fn try_out(
    guest: &GuestCluster,
    server: &str,
    authority: &[u8],
    token: &SecretText,
) -> anyhow::Result<()> {
    let bearer = format!("system:serviceaccount:{}:{}", guest.namespace, guest.cluster);
    let tried = async {
        let authority = String::from_utf8_lossy(authority);
        let there = ServerClient::new(server, Some(&authority), None)?;
        there.accepts(token, &bearer, CHECKED).await
    };
    tried.await.map_err(|why| {
        refused(format!(
            "--server {server}: the test of the cloud config has failed, so nothing was printed: \
             {why}. If the guest's nodes reach this server and this machine does not, give \
             --skip-check"
        ))
        .into()
    })
}

/// Error of a task that is not finished after [`ROUNDS`] rounds, because other processes keep
/// changing the guest's objects.
fn always_changed(guest: &GuestCluster) -> anyhow::Error {
    let GuestCluster { namespace, cluster } = guest;
    anyhow::anyhow!(
        "other processes keep changing the objects of guest cluster {namespace}/{cluster}: run the \
         command again later"
    )
}

fn refused(why: String) -> RefusalReasons {
    RefusalReasons(vec![why])
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to standard output")
}

fn report_progress(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stderr(), "{text}").context("cannot write to standard error")
}
