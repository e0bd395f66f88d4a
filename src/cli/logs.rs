//! How a process logs, and what it says first.

use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Logs {
    /// How logs are written.
    #[arg(long, env = "HGO_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace, or directives such as
    /// `info,harvester_guest_operator=debug`.
    #[arg(long, env = "HGO_LOG", default_value = "info", global = true)]
    log: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl Logs {
    /// Logs from now on. `undumped`: why a core dump may be made after all, if it may.
    pub(super) fn start(&self, undumped: &Result<(), String>) -> anyhow::Result<()> {
        // The library gives every reconcile a span, which costs more than it says: a line about a
        // LoadBalancer names it itself. Whoever asks for the library's own words gets them.
        let filter: Targets = format!("kube_runtime=warn,{}", self.log).parse()?;
        let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let all = tracing_subscriber::registry().with(filter);
        match self.log_format {
            LogFormat::Text => all.with(logs.with_ansi(false)).init(),
            LogFormat::Json => all.with(logs.json().flatten_event(true)).init(),
        }
        if let Err(why) = undumped {
            tracing::warn!(why, "a core dump of this process may be made, with credentials in it");
        }
        Ok(())
    }
}
