//! Owns networks of tests: namespaces, their links, and clients and servers in them.
//!
//! A namespace has no name in the file system, only an open file in this process. So it goes, with
//! all its interfaces, addresses and rules, when its last [`Netns`] is dropped and no process runs
//! in it any more, however this process ends. This module changes only namespaces that it has made:
//! work in one is done by threads that entered it and end afterwards.

pub mod dhcp;
mod forward;
mod lan;
mod segment;
mod talk;

use std::env;
use std::fs::{self, File};
use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

pub use self::forward::Forward;
pub use self::lan::Lan;
pub use self::segment::Segment;
pub use self::talk::{Answer, Answers, Protocol, Responder, ask, ask_for};
use crate::programs::control_plane_blocking;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A network namespace with a loopback interface that is up.
#[derive(Clone, Debug)]
pub struct Netns {
    name: String,
    file: Arc<File>,
}

impl Netns {
    /// Makes a new namespace. The label identifies it in messages.
    pub async fn new(label: &str) -> Result<Self> {
        let label = label.to_owned();
        tokio::task::spawn_blocking(move || Self::make(&label)).await?
    }

    fn make(label: &str) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hgo-{}-{number}-{label}", std::process::id());
        // A process that makes a namespace is in it. This shell makes it, and holds it until it is
        // opened.
        let mut maker = program("unshare")
            .args(["--net", "/bin/sh", "-c", "ip link set lo up && echo made && read -r _", &name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start unshare, which is in the Debian package util-linux")?;
        let stdout = maker.stdout.take().context("unshare has no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let made = line == "made\n";
        let file = made.then(|| File::open(format!("/proc/{}/ns/net", maker.id())));
        // Closes the shell's standard input, which ends it.
        let output = maker.wait_with_output()?;
        let Some(file) = file else {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            bail!("no network namespace could be made ({said}). {}", what_is_missing(&said))
        };
        Ok(Self { name, file: Arc::new(file.context("open a namespace")?) })
    }

    /// Name of the namespace in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path of the namespace for other programs, such as `nsenter --net=PATH` or `ip link set
    /// DEVICE netns PATH`, valid while this process holds it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Runs a function inside, on a thread that ends with it. Sockets and processes that it makes
    /// belong to the namespace and may be used from everywhere afterwards.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inside = self.clone();
        let (done, result) = oneshot::channel();
        thread::Builder::new().name(self.name.clone()).spawn(move || {
            // The send fails if the receiver was dropped.
            drop(done.send(inside.enter().and_then(|()| work())));
        })?;
        result.await.with_context(|| format!("work in {} panicked", self.name))?
    }

    /// Runs a program inside and returns its output; its failure is an error.
    pub async fn command(&self, name: &str, args: &[&str]) -> Result<String> {
        let mut command = program(name);
        command.args(args);
        let said = format!("{}: {name} {}", self.name, args.join(" "));
        self.run(move || {
            let output = command.stdin(Stdio::null()).output().with_context(|| said.clone())?;
            let stderr = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{said}: {}: {}", output.status, stderr.trim());
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        })
        .await
    }

    /// Runs `ip` inside with the words of `args`.
    pub async fn ip(&self, args: &str) -> Result<String> {
        self.command("ip", &args.split_whitespace().collect::<Vec<_>>()).await
    }

    /// Sets a kernel parameter of the namespace, such as `net/ipv4/ip_forward`.
    pub async fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        let (path, value) = (format!("/proc/sys/{name}"), value.to_owned());
        self.run(move || fs::write(&path, value).with_context(|| format!("set {path}"))).await
    }

    /// Moves the calling thread into the namespace for good; threads and processes that it starts
    /// begin there.
    fn enter(&self) -> Result<()> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("enter {}", self.name))
    }
}

/// Reason why no network with these programs can be made here, `None` if it can: a right or a
/// program is missing. Programs are given with their Debian packages.
pub async fn obstacle(programs: &[(&str, &str)]) -> Result<Option<String>> {
    let mut trial = program("unshare");
    trial.args(["--net", "true"]).stdin(Stdio::null());
    let trial = tokio::task::spawn_blocking(move || trial.output()).await?;
    let trial = trial.context("start unshare, which is in the Debian package util-linux")?;
    let said = String::from_utf8_lossy(&trial.stderr);
    if said.contains("not permitted") {
        return Ok(Some("a network namespace takes root".to_owned()));
    }
    ensure!(trial.status.success(), "unshare --net true: {}: {}", trial.status, said.trim());
    let path = search_path();
    let is_missing = |name: &str| !env::split_paths(&path).any(|dir| dir.join(name).is_file());
    let missing = programs.iter().find(|(name, _)| is_missing(name));
    Ok(missing.map(|(name, package)| format!("{name} is not installed (Debian package {package})")))
}

/// Runs a test's body in a new namespace, the host of its network: the thread, the runtime and
/// every process it starts, a bed for instance, are inside and have a loopback of their own. No
/// route leads from there to another network.
pub fn isolated<T, F>(body: impl FnOnce(Netns) -> F + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>>,
{
    // Building the programs needs a network.
    control_plane_blocking()?;
    let host = Netns::make("host")?;
    let inside = move || {
        host.enter()?;
        // The runtime's threads are started by this thread or by each other.
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(body(host))
    };
    // The thread gets the test's name, for the report of the test's times.
    let name = thread::current().name().unwrap_or("isolated").to_owned();
    match thread::Builder::new().name(name).spawn(inside)?.join() {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}

/// Whether this thread is in another network namespace than the process.
pub(crate) fn is_elsewhere() -> Result<bool> {
    let of = |task: &str| fs::read_link(format!("/proc/{task}/ns/net"));
    Ok(of("thread-self")? != of("self")?)
}

/// Runtime whose threads are in the network namespace of the process, wherever the caller is.
pub(crate) fn of_the_process(threads: usize) -> Result<Runtime> {
    // The first thread of the process never leaves it.
    let home = is_elsewhere()?.then(|| File::open("/proc/self/ns/net")).transpose()?;
    let enter = move || {
        if let Some(home) = home {
            move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        Ok(builder.worker_threads(threads).enable_all().build()?)
    };
    thread::spawn(enter).join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Command for a program of the system, found also in the folders of administrators' programs.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", search_path());
    command
}

pub(crate) fn search_path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

fn what_is_missing(said: &str) -> &'static str {
    if said.contains("not permitted") {
        "It takes root, or CAP_SYS_ADMIN and CAP_NET_ADMIN; without being root, \
         `unshare --user --map-root-user COMMAND` gives them to COMMAND"
    } else if said.contains("not found") {
        "The program `ip` is in the Debian package iproute2"
    } else {
        "See above"
    }
}
