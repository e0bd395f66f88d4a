//! Many leases on one network.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, ensure};
use chrono::DateTime;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use testbed::eventually;
use testbed::net::dhcp::{Kind, Scope};

use super::fixture::{Site, on_site};
use crate::support::LATER;

/// Leases that fit into a /24, beside the other addresses there.
const MANY: usize = 150;
/// Largest number of releases that the server may lose beside those that the kernel has dropped,
/// because the server got no processor time on a busy machine. A client does not repeat a release,
/// because the release has no answer (RFC 2131, section 4.4.6).
const MOST_LOST: usize = 3;
/// Log message of the agent about each release.
const RELEASE: &str = "the agent releases the lease";

/// Every lease gets an address of its own, a restart retains them all, and all are released, but
/// not in bursts, of which a server would lose a part.
#[test]
fn many_leases_get_an_address_each_and_give_it_back() -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]).range(10, 250);
    on_site(Kind::Dnsmasq, scope, async |mut site: Site| {
        let mut agent = site.agent().await?;
        let began = Instant::now();
        futures::stream::iter(0..MANY)
            .map(|n| site.lease_at(n))
            .buffer_unordered(16)
            .try_collect::<Vec<_>>()
            .await?;
        let first = addressed(&site).await?;
        println!(
            "{MANY} leases {:.1} s after the first record was begun; the agent, unoptimized: {}",
            began.elapsed().as_secs_f64(),
            agent.memory()?
        );
        ensure!(site.links().await?.len() == MANY, "{:?}", site.links().await?);
        site.kill(&mut agent).await?;
        let agent = site.agent().await?;
        eventually(LATER, "renewals of all", async || {
            agent.metric("hgo_dhcp_leases{state=\"Bound\"}").await.map(|bound| {
                // Counters are whole numbers.
                bound >= 150.0
            })
        })
        .await?;
        ensure!(addressed(&site).await? == first, "a restart changed an address");
        ensure!(site.links().await?.len() == MANY, "{:?}", site.links().await?);
        let dropped = site.server.dropped().await?;
        let deletions = delete_all(&site).await?;
        eventually(LATER, "release of all", async || {
            let released = agent.process.log().matches(RELEASE).count();
            if released == MANY { Ok(true) } else { Err(released.to_string()) }
        })
        .await?;
        eventually(LATER, "end of the grants", async || {
            let granted = site.server.granted().await.map_err(|error| error.to_string())?;
            let dropped = site.server.dropped().await.map_err(|error| error.to_string())? - dropped;
            let left = granted.len();
            if left <= MOST_LOST + usize::try_from(dropped).unwrap_or(usize::MAX) {
                Ok(true)
            } else {
                let arrived = site.server.log().matches("DHCPRELEASE").count();
                let states = agent.process.log().matches("state of leadership").count();
                Err(format!(
                    "{left} left, {arrived} releases arrived, {dropped} packets dropped, and the \
                     leadership changed {states} times"
                ))
            }
        })
        .await?;
        // A burst of 10, then one every 20 ms.
        let most = most_in_a_second(&logged(&agent.process.log(), RELEASE));
        let deleted = most_in_a_second(&deletions);
        println!("at most {most} given back in a second, and {deleted} deleted");
        let least = deleted.min(10);
        ensure!((least..=61).contains(&most), "{most} in a second, not {least} to 61");
        eventually(LATER, "end of all records", async || {
            site.records().list(&ListParams::default()).await.map(|list| list.items.is_empty())
        })
        .await?;
        eventually(LATER, "end of all links", async || {
            site.links().await.map(|links| links.is_empty())
        })
        .await
    })
}

/// Deletes all records, 16 at once, and returns the time of each deletion in microseconds. One call for
/// the whole collection deletes one after the other.
async fn delete_all(site: &Site) -> Result<Vec<i64>> {
    let (records, began) = (site.records(), Instant::now());
    let list = records.list_metadata(&ListParams::default()).await?;
    futures::stream::iter(list.iter().map(ResourceExt::name_any))
        .map(async |name: String| {
            records.delete(&name, &DeleteParams::default()).await?;
            anyhow::Ok(i64::try_from(began.elapsed().as_micros())?)
        })
        .buffer_unordered(16)
        .try_collect()
        .await
}

/// Times of the log lines with this message, in microseconds.
fn logged(log: &str, message: &str) -> Vec<i64> {
    log.lines()
        .filter(|line| line.contains(message))
        .filter_map(|line| DateTime::parse_from_rfc3339(line.split_whitespace().next()?).ok())
        .map(|time| time.timestamp_micros())
        .collect()
}

/// Largest number of times within a second.
fn most_in_a_second(micros: &[i64]) -> usize {
    let within = |first: &i64| {
        micros.iter().filter(|time| (*first..first + 1_000_000).contains(*time)).count()
    };
    micros.iter().map(within).max().unwrap_or(0)
}

/// Waits until all have addresses, each a different one.
async fn addressed(site: &Site) -> Result<BTreeSet<(String, String)>> {
    eventually(LATER, "addresses for all", async || {
        let list = site.records().list(&ListParams::default()).await;
        let list = list.map_err(|error| error.to_string())?;
        let all: BTreeSet<(String, String)> = list
            .iter()
            .filter_map(|record| {
                Some((record.name_any(), record.status.as_ref()?.address.clone()?))
            })
            .collect();
        let addresses: BTreeSet<&String> = all.iter().map(|(_, address)| address).collect();
        if addresses.len() == MANY { Ok(Some(all)) } else { Err(format!("{}", addresses.len())) }
    })
    .await
}
