//! Reads from the options of `cloud-config` which work they request. If options are not valid, or
//! exclude each other, the error names every fault.

use anyhow::Context as _;
use x509_parser::pem::Pem;

use super::{CloudConfigArgs, GuestCluster, RefusalReasons, RevokeScope, file};
use crate::domain::credentials::guest_account::{namespace_fault, output};

/// Work that the options of `cloud-config` request.
pub(super) enum RequestedWork {
    List,
    /// Makes the access of `guest`, and prints its cloud config.
    Make {
        guest: GuestCluster,
        /// URL of the server. `None`: `--server` was not given.
        server: Option<String>,
        /// Certificate authorities of the server, in PEM. `None`: the cluster's own authorities.
        authority: Option<Vec<u8>>,
        /// Credentials to revoke after the new token is printed.
        revoke: Option<RevokeScope>,
    },
    Revoke(GuestCluster, RevokeScope),
    /// Revokes the credentials of this guest, if the guest is gone. `None`: the credentials of all
    /// requested guests that are gone.
    RevokeGone(Option<GuestCluster>),
}

/// Parses the options. `Err` names every fault, not only the first.
pub(super) fn read(args: &CloudConfigArgs) -> anyhow::Result<RequestedWork> {
    let mut faults = Vec::new();
    let what = args.revoke.as_deref().map(RevokeScope::from);
    let gone = what == Some(RevokeScope::Gone);
    let many = args.list || gone;
    let makes = !args.list && (what.is_none() || args.rotate);

    let guest = guest(args, many, &mut faults);
    let mut refuse = |when: bool, why: &str| {
        if when {
            faults.push(why.to_owned());
        }
    };
    refuse(args.list && args.rotate, "--list: changes nothing: leave out --list or --rotate");
    refuse(args.list && what.is_some(), "--list: changes nothing: leave out --list or --revoke");
    refuse(args.list && args.dry_run, "--dry-run: --list changes nothing: leave out --dry-run");
    refuse(
        args.all_namespaces && !many,
        "--all-namespaces: is only for --list and --revoke gone: give one --namespace instead",
    );
    refuse(
        args.rotate && matches!(what, Some(RevokeScope::All | RevokeScope::Gone)),
        "--rotate: --revoke all and --revoke gone delete the account, and the new token with it: \
         give --revoke old instead",
    );
    refuse(
        what == Some(RevokeScope::Token(String::new())),
        "--revoke: must be old, all, gone, or the name of a token Secret",
    );
    refuse(
        args.skip_check && !makes,
        "--skip-check: no cloud config is printed, so there is no test: leave out --skip-check",
    );
    refuse(args.out.is_some() && !makes, "--out: no cloud config is printed: leave out --out");
    refuse(
        args.out.is_some() && args.dry_run,
        "--out: --dry-run writes no file: leave out --out or --dry-run",
    );
    let server = args.server.as_deref().map(output::server);
    if let Some(Err(why)) = &server {
        faults.push(why.clone());
    }
    if let Some(out) = &args.out
        && let Err(error) = file::check(out)
    {
        faults.push(format!("--out {}: {error:#}", out.display()));
    }
    let authority = args.certificate_authority.as_deref().map(authority);
    if let Some(Err(error)) = &authority {
        faults.push(format!("--certificate-authority: {error:#}"));
    }
    if !faults.is_empty() {
        return Err(RefusalReasons(faults).into());
    }
    Ok(match (args.list, what, guest) {
        (true, ..) => RequestedWork::List,
        (_, Some(RevokeScope::Gone), guest) => RequestedWork::RevokeGone(guest),
        (_, Some(what), Some(guest)) if !args.rotate => RequestedWork::Revoke(guest, what),
        (_, revoke, Some(guest)) => RequestedWork::Make {
            guest,
            server: server.transpose().map_err(|why| RefusalReasons(vec![why]))?,
            authority: authority.transpose()?,
            revoke,
        },
        (_, _, None) => anyhow::bail!("--cluster: must be given"),
    })
}

/// Parses the options that name the guest. Returns `None` if they name no guest, or are faulty.
/// `many`: whether the request may be for several guests. `faults`: list to which each fault of
/// these options is added.
fn guest(args: &CloudConfigArgs, many: bool, faults: &mut Vec<String>) -> Option<GuestCluster> {
    let both = "--all-namespaces: --namespace is given as well: leave out one of the two";
    match (&args.namespace, args.all_namespaces) {
        (Some(_), true) => faults.push(both.to_owned()),
        (None, false) => {
            let or = if many { ", or give --all-namespaces" } else { "" };
            faults.push(format!("--namespace: must be given: namespace of the guest's VMs{or}"));
        }
        _ => {}
    }
    if args.cluster.is_none() && !many {
        faults.push("--cluster: must be given: the name of the guest cluster".to_owned());
    }
    match (&args.cluster, &args.namespace) {
        (Some(cluster), namespace) => {
            // If `--namespace` is missing, the valid namespace `n` is used for this check.
            // Otherwise, the missing namespace would be reported a second time.
            let guest = GuestCluster::new(cluster, namespace.as_deref().unwrap_or("n"));
            match guest {
                Ok(guest) if namespace.is_some() => return Some(guest),
                Ok(_) => {}
                Err(RefusalReasons(more)) => faults.extend(more),
            }
        }
        (None, Some(namespace)) => faults.extend(namespace_fault(namespace)),
        (None, None) => {}
    }
    None
}

/// Reads a file that must hold certificates and nothing else.
fn authority(path: &std::path::Path) -> anyhow::Result<Vec<u8>> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    let mut certificates = 0;
    for block in Pem::iter_from_buffer(&text) {
        let block = block.with_context(|| format!("{} is not PEM", path.display()))?;
        anyhow::ensure!(
            block.label == "CERTIFICATE",
            "{} holds a {}: it must hold only certificates",
            path.display(),
            block.label
        );
        block.parse_x509().with_context(|| format!("{}: invalid certificate", path.display()))?;
        certificates += 1;
    }
    anyhow::ensure!(certificates > 0, "{} holds no certificate in PEM", path.display());
    Ok(text)
}
