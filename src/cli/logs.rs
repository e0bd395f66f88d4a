//! Options of the log, and its start.

use anyhow::Context as _;
use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct LogOptions {
    /// Format of the log.
    #[arg(long, env = "HGO_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    log_format: LogFormat,
    /// Log filter: error, warn, info, debug or trace, or directives such as
    /// `info,harvester_guest_operator=debug`. The library kube_runtime logs only warnings and
    /// errors, unless a directive names it.
    #[arg(long, env = "HGO_LOG", default_value = "info", global = true)]
    log: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl LogOptions {
    /// Starts logging. `undumped`: result of `core_dumps::forbid`. If core dumps could not be
    /// prevented, the log contains a warning.
    pub(super) fn start(&self, undumped: &Result<(), String>) -> anyhow::Result<()> {
        // The library kube_runtime gives each reconcile a span. The span takes time, and log lines
        // about a LoadBalancer contain its name even without the span. So the span is disabled. The
        // option's filter can still enable the library's own logs.
        let filter = format!("kube_runtime=warn,{}", self.log);
        let filter = filter.parse::<Targets>().with_context(|| {
            format!("--log {:?}: must be a level such as info, or info,kube=debug", self.log)
        })?;
        let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let all = tracing_subscriber::registry().with(filter);
        match self.log_format {
            LogFormat::Text => all.with(logs.with_ansi(false)).init(),
            LogFormat::Json => all.with(logs.json().flatten_event(true)).init(),
        }
        if let Err(why) = undumped {
            tracing::warn!(why, "core dumps are possible and would contain credentials");
        }
        Ok(())
    }
}
