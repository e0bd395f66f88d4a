//! Owns a running control plane, from its start to the removal of its last file.

mod backup;

use std::fmt;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::Programs;
use crate::audit::{self, Asked, AuditLog};
use crate::daemons::{self, API_SERVER, CONTROLLER_MANAGER, ETCD, Ports};
use crate::guardian::Guardian;
use crate::kubeconfig::{self, client_from};
use crate::kubectl::KUBECTL_CACHE;
use crate::pki::Authority;
use crate::programs::control_plane;
use crate::store::Store;
use crate::wait::waited;

pub use backup::Backup;

const START_ATTEMPTS: u32 = 4;
const DAEMON_DEADLINE: Duration = Duration::from_mins(4);
/// Limit of concurrent starts. On two otherwise idle processors, one start takes 4.2 s, two
/// together 4.3 s, three 5.7 s, and other work hardly gets processor time.
static STARTS: Semaphore = Semaphore::const_new(2);
const POLL: Duration = Duration::from_millis(20);
/// The namespace whose accounts are recorded.
const OPERATORS: &str = "harvester-system";
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// Options of a bed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Further flags for the API server; they come last, so they override the others.
    pub api_server_args: Vec<String>,
    /// Keeps an audit log of requests of accounts in the operator's namespace: see [`Bed::asked`].
    pub record: bool,
}

/// A control plane for one test. Dropping it stops it, which takes a moment and blocks.
pub struct Bed {
    guardian: Guardian,
    programs: Programs,
    url: String,
    ca_pem: String,
    kubeconfig: PathBuf,
    etcd: u16,
    /// Client on the runtime of the test that uses the bed.
    admin: RwLock<Client>,
    audit: Mutex<AuditLog>,
    written: AtomicU32,
}

impl fmt::Debug for Bed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bed").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Bed {
    /// Starts a control plane and waits until it is usable: the API server is ready and the
    /// controller manager has set up the namespace `default`.
    pub async fn start(options: Options) -> Result<Self> {
        let programs = control_plane().await?;
        let begin = Instant::now();
        let _turn = STARTS.acquire().await?;
        for _ in 1..START_ATTEMPTS {
            match Self::try_start(&programs, &options).await {
                Err(e) if format!("{e:#}").contains("address already in use") => {}
                settled => {
                    waited("start of a control plane", begin.elapsed());
                    return settled;
                }
            }
        }
        Self::try_start(&programs, &options).await
    }

    async fn try_start(programs: &Programs, options: &Options) -> Result<Self> {
        let ports = Ports::free()?;
        let guardian = Guardian::start()?;
        let authority = Authority::new("testbed")?;
        let token = random_token()?;
        daemons::write_secrets(guardian.dir(), &authority, &token)?;

        let url = format!("https://127.0.0.1:{}", ports.api);
        let ca_pem = authority.pem();
        let text = kubeconfig::render(&url, &ca_pem, &token)?;
        let kubeconfig = guardian.dir().join("admin.kubeconfig");
        fs::write(&kubeconfig, &text)?;
        let admin = client_from(&text).await?;
        let written = AtomicU32::new(0);
        let programs = programs.clone();
        let mut bed = Self {
            guardian,
            programs,
            url,
            ca_pem,
            kubeconfig,
            etcd: ports.etcd,
            admin: RwLock::new(admin),
            audit: Mutex::default(),
            written,
        };

        bed.run(ETCD, &daemons::etcd_args(ports))?;
        let etcd = ("127.0.0.1", ports.etcd);
        bed.until(ETCD, async |_| TcpStream::connect(etcd).await.is_ok()).await?;

        let mut args = daemons::api_server_args(ports, options);
        if options.record {
            args.extend(audit::api_server_args(bed.dir(), OPERATORS)?);
        }
        bed.run(API_SERVER, &args)?;
        bed.until(API_SERVER, async |client| answers_ok(client, "/readyz").await).await?;

        bed.run(CONTROLLER_MANAGER, &daemons::controller_manager_args())?;
        bed.until(CONTROLLER_MANAGER, async |client| default_namespace_is_set_up(client).await)
            .await?;
        // If another process had taken etcd's port, the API server would now serve that process's
        // data.
        bed.guardian.check(ETCD)?;
        Ok(bed)
    }

    fn run(&mut self, name: &str, args: &[String]) -> Result<()> {
        self.guardian.run(name, self.programs.path(name), args)
    }

    async fn until(&mut self, name: &str, ready: impl AsyncFn(&Client) -> bool) -> Result<()> {
        let deadline = Instant::now() + DAEMON_DEADLINE;
        loop {
            self.guardian.check(name)?;
            if ready(&self.admin()).await {
                return self.guardian.check(name);
            }
            if Instant::now() > deadline {
                let log = self.guardian.log_tail(name);
                bail!("{name} was not ready in time; the last lines of its log:\n{log}");
            }
            sleep(POLL).await;
        }
    }

    /// Stops the control plane and removes its directory.
    pub async fn stop(mut self) -> Result<()> {
        tokio::task::spawn_blocking(move || self.guardian.stop()).await?
    }

    /// The API server's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Certificate of the authority that signed the API server's certificate, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Directory of the bed, removed with the bed. It holds the daemons' logs.
    pub fn dir(&self) -> &Path {
        self.guardian.dir()
    }

    /// Requests of the operator's accounts so far, and those of them that were forbidden. Fails
    /// unless [`Options::record`] is set.
    pub fn asked(&self) -> Result<Asked> {
        self.audit.lock().unwrap_or_else(PoisonError::into_inner).read(self.dir())
    }

    /// Content of the bed's etcd.
    pub(crate) fn store(&self) -> Store {
        Store::new(self.etcd)
    }

    /// Prepares a bed that other tests have used for the calling test: a client on the test's
    /// runtime, and an audit log that begins now.
    pub(crate) async fn begin(&self) -> Result<()> {
        let admin = client_from(&fs::read_to_string(&self.kubeconfig)?).await?;
        *self.admin.write().unwrap_or_else(PoisonError::into_inner) = admin;
        self.audit.lock().unwrap_or_else(PoisonError::into_inner).begin(self.dir());
        // kubectl caches the list of kinds there.
        match fs::remove_dir_all(self.dir().join(KUBECTL_CACHE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Address of the API server.
    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.url.trim_start_matches("https://").parse()?)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Programs that the bed runs.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Process ids of etcd, the API server and the controller manager.
    pub fn pids(&self) -> Vec<u32> {
        let names = [ETCD, API_SERVER, CONTROLLER_MANAGER];
        names.into_iter().filter_map(|name| self.guardian.pid(name)).collect()
    }

    /// Client with all rights. See [`client_from`] for its timeouts and retries.
    pub fn admin(&self) -> Client {
        self.admin.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Client that authenticates by a token.
    pub async fn client_for(&self, token: &str) -> Result<Client> {
        client_from(&kubeconfig::render(&self.url, &self.ca_pem, token)?).await
    }

    /// Issues a token of a service account, valid for a day.
    pub async fn service_account_token(&self, namespace: &str, name: &str) -> Result<String> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        Api::<ServiceAccount>::namespaced(self.admin(), namespace)
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("ask for a token of {namespace}/{name}"))?
            .status
            .and_then(|status| status.token)
            .context("the API server gave no token")
    }

    /// Writes a kubeconfig for a service account, for the bed itself or for another route to it,
    /// given as URL and authority.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        server_override: Option<(&str, &str)>,
    ) -> Result<PathBuf> {
        let token = self.service_account_token(namespace, name).await?;
        let (url, ca_pem) = server_override.unwrap_or((&self.url, &self.ca_pem));
        self.kubeconfig_for(&token, url, ca_pem)
    }

    /// Writes a kubeconfig into the bed's directory, under a name that was not used before.
    pub fn kubeconfig_for(&self, token: &str, url: &str, ca_pem: &str) -> Result<PathBuf> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let path = self.dir().join(format!("{number}.kubeconfig"));
        fs::write(&path, kubeconfig::render(url, ca_pem, token)?)?;
        Ok(path)
    }
}

async fn answers_ok(client: &Client, path: &str) -> bool {
    match hyper::Request::get(path).body(Vec::new()) {
        Ok(request) => client.request_text(request).await.is_ok(),
        Err(_) => false,
    }
}

async fn default_namespace_is_set_up(client: &Client) -> bool {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    let authorities = Api::<ConfigMap>::namespaced(client.clone(), "default");
    matches!(accounts.get_opt("default").await, Ok(Some(_)))
        && matches!(authorities.get_opt("kube-root-ca.crt").await, Ok(Some(_)))
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
