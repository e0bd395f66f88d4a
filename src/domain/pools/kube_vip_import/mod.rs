//! Pools from the ConfigMap in which kube-vip's cloud provider has its addresses.
//!
//! Keys are `cidr-<namespace>` and `range-<namespace>`. The two keys of a namespace make one pool.
//! `global` instead of a namespace means all namespaces that have no key of their own. A value is a
//! list of items, separated by commas. Every item is imported by itself: an invalid item is
//! reported, and the others are imported.
//!
//! A range has no subnet in the ConfigMap. The import starts with the smallest subnet that contains
//! both ends of the range. It doubles this subnet until both ends are hosts, and the gateway is
//! outside the range. If 16 doublings do not suffice, the smallest subnet is taken, and a note
//! lists the addresses of the range that are not given out. (Harvester's Go controller always took
//! the smallest subnet. So the first address of the range was often the network address or the
//! gateway, and was never given out.)
//!
//! An address that a LoadBalancer uses is recorded as the LoadBalancer's former address, so that
//! the LoadBalancer gets it again. The ConfigMap also lists Services with their addresses. If such
//! a Service belongs to no LoadBalancer, its address is excluded from a new pool.

mod item;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use serde::Deserialize;

use super::conflict::{self, PoolFacts};
use super::ranges::PoolRanges;
use crate::network::Segment;
use api::{DHCP_ADDRESS, IPPool, IPPoolSpec, Range, Scope, Selector};

/// Namespace of kube-vip's ConfigMap, and of the Services that it lists.
pub const NAMESPACE: &str = "kube-system";
/// Name of kube-vip's ConfigMap.
pub const NAME: &str = "kubevip";

/// Suffix of the ConfigMap's keys for the pool of all namespaces, and that pool's name.
const GLOBAL: &str = "global";
/// Key of the ConfigMap under which kube-vip records the addresses that it announces.
const SERVICES: &str = "kubevip-services";
/// Maximum number of ranges of one imported pool, and of excluded addresses of one range. The CRD's
/// schema allows more ranges (256), but not more excluded addresses.
const MOST_RANGES: usize = 64;
/// Maximum length of the report, in bytes. Lines that do not fit are left out, and one more line
/// gives their number. The report is an annotation, and all annotations of an object together may
/// have 256 KiB.
const LONGEST_REPORT: usize = 16 * 1024;

/// State of the cluster that the plan needs in addition to the content of the ConfigMap.
#[derive(Clone, Debug, Default)]
pub struct ImportFacts {
    /// IPPools that exist.
    pub pools: Vec<IPPool>,
    /// Address that each LoadBalancer publishes, by `namespace/name`. `None`: no address.
    pub load_balancers: BTreeMap<String, Option<IpAddr>>,
}

/// A pool that the import makes from keys of the ConfigMap.
#[derive(Clone, Debug, PartialEq)]
pub struct NewPool {
    /// Name of the pool: the name of the namespace, or `global`.
    pub name: String,
    /// Spec of the pool.
    pub spec: IPPoolSpec,
    /// Map from an address of the pool to the LoadBalancer that uses it, `namespace/name`.
    pub history: BTreeMap<String, String>,
    /// Whether the pool exists already, because an earlier run created it. That run may have ended
    /// before it wrote the history.
    pub there: bool,
}

impl NewPool {
    fn new(name: &str, ranges: Vec<Range>, there: bool) -> Self {
        let spec = spec(name, ranges);
        Self { name: name.to_owned(), spec, history: BTreeMap::new(), there }
    }
}

/// A part of the ConfigMap that was not imported, or a pool that the API server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedItem {
    /// Key in the ConfigMap, or the name of the refused pool.
    pub key: String,
    /// Item of the key's value. If this text is empty, the whole value or the whole pool was
    /// refused.
    pub value: String,
    /// Fault and remedy.
    pub why: String,
}

impl fmt::Display for RefusedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value: String = self.value.chars().take(120).collect();
        write!(f, "{} {value:?}: {}", self.key, self.why)
    }
}

/// Plan for the import of a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportPlan {
    /// Pools to create, and pools that an earlier run of the import has created.
    pub pools: Vec<NewPool>,
    /// Names of pools that exist already and have a range that is not in the ConfigMap. Also pools
    /// that another client created during the import. These pools are not changed.
    pub left: Vec<String>,
    /// Parts of the ConfigMap that are not imported, and pools that the API server refused.
    pub refused: Vec<RefusedItem>,
    /// Notes on reversed ranges, on addresses of ranges that are not given out, and on addresses
    /// that are excluded because a Service uses them.
    pub notes: Vec<String>,
    /// Keys of the ConfigMap that the import does not know.
    pub ignored: Vec<String>,
}

/// Makes the plan for the import of a ConfigMap with this data. The pools of namespaces are planned
/// in alphabetical order, and the global pool last. So if the global pool overlaps the pool of a
/// namespace, the overlapping ranges of the global pool are refused.
pub fn plan(data: &BTreeMap<String, String>, known: &ImportFacts) -> ImportPlan {
    let mut import = ImportPlan::default();
    let mut ranges: BTreeMap<(bool, &str), Vec<(Range, RefusedItem)>> = BTreeMap::new();
    for (key, value) in data {
        let Some((format, name)) = key.split_once('-').filter(|(f, _)| item::is_format(f)) else {
            import.ignored.extend((key != SERVICES).then(|| key.clone()));
            continue;
        };
        let refused = |value: &str, why: String| RefusedItem {
            key: key.clone(),
            value: value.to_owned(),
            why,
        };
        if !is_namespace(name) {
            let why = format!(
                "{name:?} is not a namespace: write {format}-NAMESPACE or {format}-{GLOBAL}"
            );
            import.refused.push(refused("", why));
            continue;
        }
        let mut items = value.split(',').map(str::trim).filter(|item| !item.is_empty()).peekable();
        if items.peek().is_none() {
            import.refused.push(refused(value, "contains no addresses: nothing to do".to_owned()));
        }
        for text in items {
            match item::read(format, text) {
                Ok((range, notes)) => {
                    import
                        .notes
                        .extend(notes.into_iter().map(|note| format!("{key} {text:?}: {note}")));
                    let pool = ranges.entry((name == GLOBAL, name)).or_default();
                    pool.push((range, refused(text, String::new())));
                }
                Err(why) => import.refused.push(refused(text, why)),
            }
        }
    }
    for ((_, name), items) in ranges {
        import.pool(name, items, known);
    }
    import.in_use(data.get(SERVICES), known);
    import
}

impl ImportPlan {
    /// Plans the pool `name` from its items. An item that cannot be imported is added to `refused`.
    fn pool(&mut self, name: &str, items: Vec<(Range, RefusedItem)>, known: &ImportFacts) {
        let there = known.pools.iter().find(|pool| pool.metadata.name.as_deref() == Some(name));
        if let Some(there) = there {
            let ranges: Vec<Range> = items.into_iter().map(|(range, _)| range).collect();
            if is_made_of(there, &ranges) {
                self.pools.push(NewPool::new(name, ranges, true));
            } else {
                self.left.push(name.to_owned());
            }
            return;
        }
        let mut taken: Vec<Range> = Vec::new();
        for (range, mut item) in items {
            let mut with = taken.clone();
            with.push(range);
            let fault = if with.len() > MOST_RANGES {
                Some(format!(
                    "a pool has at most {MOST_RANGES} ranges: create another IPPool for this item"
                ))
            } else {
                let fault = PoolRanges::parse(&with).err().map(|error| error.message);
                fault.or_else(|| self.conflict(name, &spec(name, with.clone()), known))
            };
            match fault {
                None => taken = with,
                Some(why) => {
                    item.why = why;
                    self.refused.push(item);
                }
            }
        }
        if !taken.is_empty() {
            self.pools.push(NewPool::new(name, taken, false));
        }
    }

    /// Conflict of a new pool with the existing and the planned pools, as a message. `None`: no
    /// conflict.
    fn conflict(&self, name: &str, spec: &IPPoolSpec, known: &ImportFacts) -> Option<String> {
        let there = known.pools.iter().map(|pool| {
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            PoolFacts::new(name, 0, &pool.spec)
        });
        let planned = self.pools.iter().map(|pool| PoolFacts::new(&pool.name, 0, &pool.spec));
        let others: Vec<(PoolFacts, Segment)> = there
            .chain(planned)
            .map(|pool| {
                let segment = Segment::of(pool.selector.network(), None, true);
                (pool, segment)
            })
            .collect();
        let others: Vec<_> = others.iter().map(|(pool, segment)| pool.contender(segment)).collect();
        let candidate = PoolFacts::new(name, i64::MAX, spec);
        // Imported pools have no network, so their addresses are on the nodes' own network.
        let conflicts = conflict::against(&candidate.contender(&Segment::Management), &others);
        conflicts.first().map(conflict::PoolConflict::message)
    }

    /// Finds the addresses of the planned pools that are in use:
    /// * An address of a LoadBalancer is recorded as the LoadBalancer's former address.
    /// * An address of a Service that belongs to no LoadBalancer is excluded from its range, if the
    ///   pool is new.
    ///
    /// `services`: value of the key [`SERVICES`].
    fn in_use(&mut self, services: Option<&String>, known: &ImportFacts) {
        let mut users: BTreeMap<IpAddr, String> = BTreeMap::new();
        match services.map(|text| serde_json::from_str::<AnnouncedServices>(text)) {
            Some(Ok(AnnouncedServices { services })) => {
                for AnnouncedService { vip, name } in services {
                    let dhcp = vip == DHCP_ADDRESS || vip.is_empty();
                    match vip.parse::<IpAddr>() {
                        _ if dhcp => {}
                        Ok(ip) => drop(users.insert(ip, format!("{NAMESPACE}/{name}"))),
                        Err(_) => self.refused.push(RefusedItem {
                            key: SERVICES.to_owned(),
                            value: vip,
                            why: format!("is not an address: see what Service {name} announces"),
                        }),
                    }
                }
            }
            Some(Err(error)) => self.refused.push(RefusedItem {
                key: SERVICES.to_owned(),
                value: String::new(),
                why: format!("{error}: compare the pools with the addresses of Services in use"),
            }),
            None => {}
        }
        let published = known.load_balancers.iter();
        users.extend(published.filter_map(|(name, address)| Some(((*address)?, name.clone()))));
        for (ip, user) in users {
            self.note_user(ip, user, known);
        }
    }

    fn note_user(&mut self, ip: IpAddr, user: String, known: &ImportFacts) {
        for pool in &mut self.pools {
            let Ok(ranges) = PoolRanges::parse(&pool.spec.ranges) else { continue };
            let Some(stretch) = ranges.find(ip) else { continue };
            if known.load_balancers.contains_key(&user) {
                pool.history.insert(ip.to_string(), user);
                return;
            }
            if pool.there {
                return;
            }
            let Some(range) = pool.spec.ranges.get_mut(stretch.range) else { continue };
            let excluded = range.exclude.get_or_insert_default();
            if excluded.len() < MOST_RANGES {
                excluded.push(ip.to_string());
                self.notes.push(format!(
                    "{SERVICES}: {ip} is in use by Service {user}, which is not a LoadBalancer: IPPool {} excludes it",
                    pool.name
                ));
            } else {
                self.refused.push(RefusedItem {
                    key: SERVICES.to_owned(),
                    value: ip.to_string(),
                    why: format!(
                        "is in use by Service {user}: remove it from the ranges of IPPool {}",
                        pool.name
                    ),
                });
            }
            return;
        }
    }

    /// Report on the import, with one result on each line. `created`: names of the pools that the
    /// import has created.
    pub fn report(&self, created: &BTreeSet<String>) -> String {
        let mut lines: Vec<String> = Vec::new();
        for pool in self.pools.iter().filter(|pool| created.contains(&pool.name)) {
            lines.push(format!("created: IPPool {}, {} ranges", pool.name, pool.spec.ranges.len()));
        }
        for pool in self.pools.iter().filter(|pool| pool.there) {
            lines.push(format!("exists already: IPPool {}", pool.name));
        }
        lines.extend(self.refused.iter().map(|item| format!("not imported: {item}")));
        lines.extend(
            self.left
                .iter()
                .map(|name| format!("not changed: IPPool {name} existed; compare its ranges")),
        );
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        if !self.ignored.is_empty() {
            lines.push(format!("keys that are not pools: {}", self.ignored.join(", ")));
        }
        bounded(&lines)
    }
}

fn bounded(lines: &[String]) -> String {
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let line: String = line.chars().take(1024).collect();
        if text.len() + line.len() > LONGEST_REPORT {
            let _ = writeln!(text, "and {} lines more: see the log", lines.len() - index);
            break;
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Whether all ranges of the pool are among `ranges`. If so, the import assumes that an earlier run
/// created the pool. The pool may have fewer ranges, because the earlier run may have refused some.
/// Only subnet, start and end of the ranges are compared.
fn is_made_of(pool: &IPPool, ranges: &[Range]) -> bool {
    let bounds = |r: &Range| (r.subnet.clone(), r.range_start.clone(), r.range_end.clone());
    let planned: BTreeSet<_> = ranges.iter().map(bounds).collect();
    pool.spec.ranges.iter().all(|range| planned.contains(&bounds(range)))
}

/// The spec of a namespace's pool, as Harvester's Go controller writes it. `name`: name of the
/// namespace, or `global`.
fn spec(name: &str, ranges: Vec<Range>) -> IPPoolSpec {
    let any = || Some("*".to_owned());
    let namespace = if name == GLOBAL { "*" } else { name };
    let scope =
        Scope { project: any(), namespace: Some(namespace.to_owned()), guest_cluster: any() };
    IPPoolSpec {
        description: Some("Imported from the kube-vip ConfigMap".to_owned()),
        ranges,
        selector: Some(Selector { scope: Some(vec![scope]), ..Selector::default() }),
        ..IPPoolSpec::default()
    }
}

/// Whether the name is a label by RFC 1123, as the name of every namespace is.
fn is_namespace(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= 63
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[derive(Deserialize)]
struct AnnouncedServices {
    #[serde(default)]
    services: Vec<AnnouncedService>,
}

#[derive(Deserialize)]
struct AnnouncedService {
    #[serde(default)]
    vip: String,
    #[serde(default, rename = "serviceName")]
    name: String,
}

#[cfg(test)]
mod tests;
