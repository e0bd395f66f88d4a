//! Many LoadBalancers at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use testbed::{Bed, eventually};

use crate::PATIENCE;
use crate::objects::{balancers, create, creations_flow};
use crate::scene::Scene;
use crate::world::World;

const COUNT: usize = 200;
const NAMESPACE: &str = "burst";
const POOL: &str = "global";
/// Concurrent calls, as many clients would make them.
const CALLS: usize = 32;
/// Range for the samples' pool, which is smaller than the burst. Adding a range is enough.
const MORE: &str = r#"[{"op":"add","path":"/spec/ranges/-","value":{"subnet":"10.20.3.0/24"}}]"#;

pub(crate) async fn run(bed: &Bed, world: &mut World) -> Result<((), String)> {
    make_room(bed, world).await?;
    let before = available(&world.scene)?;
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n");
    bed.apply_yaml(&namespace).await?;
    let api = balancers(&bed.admin(), NAMESPACE);
    creations_flow(&api).await?;

    let start = Instant::now();
    let everybody = |scene: &Scene| {
        let have = scene.of_namespace(NAMESPACE).filter(|seen| seen.addressed.is_some()).count();
        if have == COUNT { Ok(true) } else { Err(format!("{have} of {COUNT} have an address")) }
    };
    let (asked, ()) =
        tokio::try_join!(ask(&api), world.until(PATIENCE, "end of the burst", everybody))?;
    let seen = report(&world.scene, start, &asked)?;

    let taken = before - i64::try_from(COUNT)?;
    counts_as(world, taken).await?;
    let start = Instant::now();
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    world
        .until(PATIENCE, "end of the burst's LoadBalancers", |scene| {
            let left = scene.of_namespace(NAMESPACE).count();
            if left == 0 { Ok(true) } else { Err(format!("{left} are left")) }
        })
        .await?;
    counts_as(world, before).await?;
    let took = start.elapsed().as_millis();
    println!(
        "      deleted: all {COUNT} addresses are back after {took} ms; {POOL} has {before} \
         available, as before the burst ({taken} during it)"
    );
    Ok(((), seen))
}

async fn make_room(bed: &Bed, world: &mut World) -> Result<()> {
    let had = available(&world.scene)?;
    bed.kubectl(&["patch", "ippool", POOL, "--type=json", "-p", MORE]).await?;
    let has = world
        .until(PATIENCE, "longer pool", |scene| {
            available(scene).map(|has| (has > had).then_some(has))
        })
        .await?;
    ensure!(has >= i64::try_from(COUNT)?, "{POOL} has only {has} addresses available");
    println!("      {POOL} had {had} available; a second range, 10.20.3.0/24, makes it {has}");
    Ok(())
}

/// Creates all LoadBalancers, and returns the time of each request.
async fn ask(api: &Api<DynamicObject>) -> Result<BTreeMap<String, Instant>> {
    futures::stream::iter(0..COUNT)
        .map(async |number| {
            let name = format!("lb-{number:03}");
            let asked = Instant::now();
            // On a busy machine a call may end without an answer, carried out or not.
            eventually(PATIENCE, &name, async || match create(api, &name, None).await {
                Err(error) if !is_there(&error) => Err(error),
                _ => Ok(true),
            })
            .await?;
            Ok((format!("{NAMESPACE}/{name}"), asked))
        })
        .buffer_unordered(CALLS)
        .try_collect()
        .await
}

/// Whether a creation failed because the object exists.
fn is_there(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 409)
}

/// Checks the results, prints the times, and returns the line of the summary.
fn report(scene: &Scene, start: Instant, asked: &BTreeMap<String, Instant>) -> Result<String> {
    let (mut waits, mut shares) = (Vec::new(), Vec::new());
    let mut last = start;
    for seen in scene.of_namespace(NAMESPACE) {
        let key = &seen.now.key;
        let asked = asked.get(key).with_context(|| format!("{key} was not requested"))?;
        let got = seen.addressed.with_context(|| format!("{key} has no address"))?;
        ensure!(seen.now.pool == POOL, "{key} is served by {}", seen.now.pool);
        waits.push(got.saturating_duration_since(*asked));
        shares.extend(seen.took());
        last = last.max(got);
    }
    ensure!(waits.len() == COUNT, "{} LoadBalancers instead of {COUNT}", waits.len());
    let addresses = scene.addresses();
    let distinct: BTreeSet<_> = addresses.values().collect();
    ensure!(
        distinct.len() == addresses.len(),
        "{} LoadBalancers share {} addresses",
        addresses.len(),
        distinct.len()
    );
    let took = last.saturating_duration_since(start).as_millis();
    let spread_of_waits = spread(waits);
    println!("      {COUNT} addresses in {took} ms");
    println!("      from asking for the LoadBalancer to seeing its address: {spread_of_waits}");
    println!("      from seeing the LoadBalancer to seeing its address: {}", spread(shares));
    println!("      checked: these and all others, {} addresses, are distinct", distinct.len());
    Ok(format!("{COUNT} addresses in {took} ms ({spread_of_waits}), all distinct"))
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let rank = |percent: usize| (times.len() * percent).div_ceil(100).saturating_sub(1);
    let at = |percent| times.get(rank(percent)).map_or(0, Duration::as_millis);
    format!("p50 {} ms, p99 {} ms", at(50), at(99))
}

/// Waits until the pool reports `expected` available addresses, and each other address has a
/// holder.
async fn counts_as(world: &mut World, expected: i64) -> Result<()> {
    world
        .until(PATIENCE, &format!("count of {expected} available in {POOL}"), |scene| {
            let pool = scene.pools.get(POOL).ok_or("the pool is gone")?;
            let held = scene.holders(POOL).len();
            let agrees = usize::try_from(pool.total - pool.available).is_ok_and(|n| n == held);
            if pool.available == expected && agrees {
                Ok(true)
            } else {
                Err(format!("{} of {} available, {held} held", pool.available, pool.total))
            }
        })
        .await
}

fn available(scene: &Scene) -> Result<i64> {
    Ok(scene.pools.get(POOL).with_context(|| format!("there is no pool {POOL}"))?.available)
}
