//! Index from a VM to the LoadBalancers that select it by its labels, and from a LoadBalancer to
//! its VMs. With this index, a change of one VM, pod or LoadBalancer needs no search through all
//! VMs or all LoadBalancers. A search by a selector in kube-runtime's store would go through all of
//! them.
//!
//! Invariants:
//!
//! * [`LabelIndex::members`] of a LoadBalancer are exactly the VMs of its namespace that match its
//!   selector.
//! * [`LabelIndex::set_vm`], [`LabelIndex::remove_vm`] and [`LabelIndex::set_pod`] return exactly
//!   the LoadBalancers whose endpoints the change can affect.
//!
//! Each pair of label and value is stored once, under a number. The pairs of a selector that have
//! the same label are a clause, and a VM matches if it has a pair of every clause. One clause of
//! each selector is its anchor: only the pairs of the anchor list the LoadBalancer. So a VM is
//! compared only with the LoadBalancers that the VM's own pairs list.

mod slots;

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use sha2::{Digest, Sha256};

use super::listeners::VmSelector;
use super::vm::{Labels, Vm, VmPod};
use slots::{Id, Slots};

/// `namespace/name` of a LoadBalancer.
pub type LbKey = Box<str>;
/// Key of a pair of label and value in a namespace, from [`pair_key`].
type PairKey = [u8; 16];

/// Index of VMs, their pods, and the selectors of LoadBalancers.
#[derive(Debug, Default)]
pub struct LabelIndex {
    pair_ids: HashMap<PairKey, Id>,
    pairs: Slots<LabelPair>,
    vm_ids: HashMap<Box<str>, Id>,
    vms: Slots<IndexedVm>,
    /// Map from a VM's UID to its pods. The index may lack the VM, because a pod may be reported
    /// before its VM is reported, or after its VM was deleted.
    pods: HashMap<Arc<str>, Vec<VmPod>>,
    /// Map from a pod's `namespace/name` to the UIDs of the pod's VM and of the pod itself.
    pod_owner: HashMap<Box<str>, (Arc<str>, Arc<str>)>,
    uids: HashMap<Arc<str>, Id>,
    /// Map from an address to the VMs that report it.
    by_address: HashMap<IpAddr, Vec<Id>>,
    lb_ids: HashMap<LbKey, Id>,
    lbs: Slots<FiledSelector>,
}

/// A label with a value, in a namespace.
#[derive(Debug, Default)]
struct LabelPair {
    key: PairKey,
    vms: Vec<Id>,
    /// LoadBalancers whose anchor clause (`FiledSelector::anchor`) contains this pair.
    lbs: Vec<Id>,
    /// Number of clauses that contain the pair, counted over all LoadBalancers together.
    uses: u32,
}

#[derive(Debug, Default)]
struct IndexedVm {
    name: Arc<str>,
    vm: Vm,
    /// Pairs of label and value that the VM has, sorted.
    labels: Box<[Id]>,
    lbs: Vec<Id>,
}

#[derive(Debug, Default)]
struct FiledSelector {
    key: LbKey,
    /// SHA-256 of the selector. A different digest shows that the selector has changed.
    selector: [u8; 32],
    /// Clauses of the selector, each a sorted list of pairs. A VM matches if it has at least one
    /// pair of each clause.
    clauses: Vec<Vec<Id>>,
    /// Index in `clauses` of the anchor clause. Only the pairs of the anchor clause list the
    /// LoadBalancer in `LabelPair::lbs`.
    anchor: usize,
    vms: BTreeSet<Id>,
}

impl LabelIndex {
    /// Stores a new or changed VM. Returns the LoadBalancers whose endpoints may change.
    pub fn set_vm(&mut self, namespace: &str, name: &str, labels: &Labels, vm: Vm) -> Vec<LbKey> {
        let key = qualified(namespace, name);
        let id = if let Some(id) = self.vm_ids.get(&key) {
            *id
        } else {
            let id = self.vms.add(IndexedVm { name: name.into(), ..IndexedVm::default() });
            self.vm_ids.insert(key, id);
            id
        };
        let old_uid = self.vms.get(id).vm.uid.clone();
        if old_uid != vm.uid {
            if self.uids.get(&old_uid) == Some(&id) {
                self.uids.remove(&old_uid);
            }
            self.uids.insert(vm.uid.clone(), id);
        }
        let changed = !self.vms.get(id).vm.serves_like(&vm);
        let before = mem::replace(&mut self.vms.get_mut(id).vm, vm);
        if before.nics != self.vms.get(id).vm.nics {
            self.forget_addresses(id, &before);
            let now: BTreeSet<IpAddr> = addresses(&self.vms.get(id).vm).collect();
            for address in now {
                self.by_address.entry(address).or_default().push(id);
            }
        }
        if self.has_labels(id, namespace, labels) {
            return if changed { self.keys(&self.vms.get(id).lbs) } else { Vec::new() };
        }
        let mut ids: Vec<Id> =
            labels.iter().map(|(key, value)| self.pair(namespace, key, value)).collect();
        ids.sort_unstable();
        self.relabel(id, ids.into(), changed)
    }

    /// Removes a VM. Returns the LoadBalancers whose endpoints may change.
    pub fn remove_vm(&mut self, namespace: &str, name: &str) -> Vec<LbKey> {
        let Some(id) = self.vm_ids.remove(&*qualified(namespace, name)) else { return Vec::new() };
        let affected = self.relabel(id, Box::default(), false);
        let member = self.vms.take(id);
        self.forget_addresses(id, &member.vm);
        if self.uids.get(&member.vm.uid) == Some(&id) {
            self.uids.remove(&member.vm.uid);
        }
        affected
    }

    /// Stores a new or changed pod. Returns the LoadBalancers whose endpoints may change. `pod`:
    /// `None` if the pod is gone, or does not run a VM. In both cases, the pod is removed from the
    /// index.
    pub fn set_pod(&mut self, namespace: &str, name: &str, pod: Option<VmPod>) -> Vec<LbKey> {
        let key = qualified(namespace, name);
        let Some(pod) = pod else { return self.drop_pod(&key) };
        let vm = pod.vm.clone();
        let mut affected = Vec::new();
        let now = (vm.clone(), pod.uid.clone());
        if self.pod_owner.get(&key).is_some_and(|before| *before != now) {
            affected = self.drop_pod(&key);
        }
        let pods = self.pods.entry(vm.clone()).or_default();
        match pods.iter_mut().find(|known| known.uid == pod.uid) {
            Some(known) if *known == pod => return affected,
            Some(known) => *known = pod,
            None => {
                pods.push(pod);
                self.pod_owner.insert(key, now);
            }
        }
        affected.extend(self.lbs_of(&vm));
        affected
    }

    /// Stores a LoadBalancer with its selector. Returns whether the selector is new or has changed.
    pub fn set_lb(&mut self, namespace: &str, name: &str, selector: &VmSelector) -> bool {
        let key = qualified(namespace, name);
        if let Some(id) = self.lb_ids.get(&key) {
            if self.lbs.get(*id).selector == selector_digest(selector) {
                return false;
            }
            self.remove_lb(namespace, name);
        }
        let clauses: Vec<Vec<Id>> = selector
            .iter()
            .map(|(label, values)| {
                let values: BTreeSet<&String> = values.iter().collect();
                let mut ids: Vec<Id> =
                    values.into_iter().map(|value| self.pair(namespace, label, value)).collect();
                ids.sort_unstable();
                for id in &ids {
                    self.pairs.get_mut(*id).uses += 1;
                }
                ids
            })
            .collect();
        // The clause whose pairs list the fewest other LoadBalancers becomes the anchor. So a VM is
        // compared with few LoadBalancers that do not select it.
        let crowd = |clause: &Vec<Id>| -> usize {
            clause.iter().map(|pair| self.pairs.get(*pair).lbs.len()).sum()
        };
        let anchor = (0..clauses.len()).min_by_key(|i| crowd(&clauses[*i])).unwrap_or_default();
        // A VM that the LoadBalancer selects has a pair of every clause. So only the VMs of the
        // clause with the fewest VMs are compared.
        let candidates = clauses
            .iter()
            .min_by_key(|clause| {
                clause.iter().map(|pair| self.pairs.get(*pair).vms.len()).sum::<usize>()
            })
            .into_iter()
            .flatten()
            .flat_map(|pair| &self.pairs.get(*pair).vms);
        let vms: BTreeSet<Id> =
            candidates.copied().filter(|vm| matches(&clauses, &self.vms.get(*vm).labels)).collect();
        let filed_under = clauses.get(anchor).cloned().unwrap_or_default();
        let members: Vec<Id> = vms.iter().copied().collect();
        let digest = selector_digest(selector);
        let filed = FiledSelector { key: key.clone(), selector: digest, clauses, anchor, vms };
        let id = self.lbs.add(filed);
        for pair in filed_under {
            self.pairs.get_mut(pair).lbs.push(id);
        }
        for vm in members {
            self.vms.get_mut(vm).lbs.push(id);
        }
        self.lb_ids.insert(key, id);
        true
    }

    /// Removes a LoadBalancer that was deleted or has no selector any more.
    pub fn remove_lb(&mut self, namespace: &str, name: &str) {
        let Some(id) = self.lb_ids.remove(&*qualified(namespace, name)) else { return };
        let filed = self.lbs.take(id);
        for vm in filed.vms {
            self.vms.get_mut(vm).lbs.retain(|lb| *lb != id);
        }
        for pair in filed.clauses.get(filed.anchor).into_iter().flatten() {
            self.pairs.get_mut(*pair).lbs.retain(|lb| *lb != id);
        }
        for pair in filed.clauses.into_iter().flatten() {
            self.pairs.get_mut(pair).uses -= 1;
            self.drop_if_unused(pair);
        }
    }

    /// VMs that a LoadBalancer selects, each with its name and pods, in no particular order.
    pub fn members<'a>(
        &'a self,
        namespace: &str,
        name: &str,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Vm, &'a [VmPod])> {
        let filed = self.lb_ids.get(&*qualified(namespace, name)).map(|id| self.lbs.get(*id));
        filed.into_iter().flat_map(|filed| &filed.vms).map(|id| {
            let member = self.vms.get(*id);
            let pods = self.pods.get(&member.vm.uid).map_or(&[][..], Vec::as_slice);
            (&member.name, &member.vm, pods)
        })
    }

    /// VMs of a namespace that have this label with this value, each with its name, in no
    /// particular order.
    pub fn labelled<'a>(
        &'a self,
        namespace: &str,
        label: &str,
        value: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Vm)> {
        let pair = self.pair_ids.get(&pair_key(namespace, label, value));
        pair.into_iter().flat_map(|pair| &self.pairs.get(*pair).vms).map(|id| {
            let member = self.vms.get(*id);
            (&*member.name, &member.vm)
        })
    }

    /// LoadBalancers that select a VM which reports an address in one of these networks.
    pub fn reporting(&self, networks: &[IpNet]) -> Vec<LbKey> {
        let (single, wide): (Vec<IpNet>, Vec<IpNet>) =
            networks.iter().partition(|network| network.prefix_len() == network.max_prefix_len());
        let single = single.iter().filter_map(|network| self.by_address.get(&network.addr()));
        let is_in = |address: &IpAddr| wide.iter().any(|network| network.contains(address));
        let all = self.by_address.iter().filter(|_| !wide.is_empty());
        let within = all.filter(|(address, _)| is_in(address)).map(|(_, vms)| vms);
        self.lbs_of_all(single.chain(within).flatten().copied())
    }

    /// LoadBalancers that select a VM with an interface on `network` (`namespace/name`).
    pub fn on_network(&self, network: &str) -> Vec<LbKey> {
        let is_there =
            |id: &&Id| self.vms.get(**id).vm.nics.iter().any(|nic| *nic.network == *network);
        self.lbs_of_all(self.vm_ids.values().filter(is_there).copied())
    }

    /// All VMs, each with its `namespace/name`.
    pub fn vms(&self) -> impl Iterator<Item = (&str, &Vm)> {
        self.vm_ids.iter().map(|(key, id)| (&**key, &self.vms.get(*id).vm))
    }

    /// VM whose `namespace/name` is `key`. `None`: the index has no such VM.
    pub fn vm(&self, key: &str) -> Option<&Vm> {
        self.vm_ids.get(key).map(|id| &self.vms.get(*id).vm)
    }

    /// Names of all pods, as `namespace/name`.
    pub fn pod_names(&self) -> impl Iterator<Item = &str> {
        self.pod_owner.keys().map(|key| &**key)
    }

    fn lbs_of(&self, vm_uid: &str) -> Vec<LbKey> {
        self.uids.get(vm_uid).map(|id| self.keys(&self.vms.get(*id).lbs)).unwrap_or_default()
    }

    fn lbs_of_all(&self, vms: impl Iterator<Item = Id>) -> Vec<LbKey> {
        let lbs: BTreeSet<Id> = vms.flat_map(|vm| &self.vms.get(vm).lbs).copied().collect();
        self.keys(&lbs.into_iter().collect::<Vec<_>>())
    }

    fn forget_addresses(&mut self, id: Id, vm: &Vm) {
        for address in addresses(vm) {
            if let Some(vms) = self.by_address.get_mut(&address) {
                vms.retain(|vm| *vm != id);
                if vms.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
    }

    fn keys(&self, lbs: &[Id]) -> Vec<LbKey> {
        lbs.iter().map(|lb| self.lbs.get(*lb).key.clone()).collect()
    }

    fn drop_pod(&mut self, key: &str) -> Vec<LbKey> {
        let Some((vm, uid)) = self.pod_owner.remove(key) else { return Vec::new() };
        if let Some(pods) = self.pods.get_mut(&vm) {
            pods.retain(|pod| pod.uid != uid);
            if pods.is_empty() {
                self.pods.remove(&vm);
            }
        }
        self.lbs_of(&vm)
    }

    /// Sets the labels of a VM. Returns the LoadBalancers that begin or cease to select the VM.
    /// `changed`: whether facts about the VM other than its labels have changed. If so, the result
    /// includes the LoadBalancers that still select the VM.
    fn relabel(&mut self, id: Id, labels: Box<[Id]>, changed: bool) -> Vec<LbKey> {
        let old = mem::replace(&mut self.vms.get_mut(id).labels, labels);
        let labels = self.vms.get(id).labels.clone();
        for pair in &labels {
            if old.binary_search(pair).is_err() {
                self.pairs.get_mut(*pair).vms.push(id);
            }
        }
        for pair in &old {
            if labels.binary_search(pair).is_err() {
                self.pairs.get_mut(*pair).vms.retain(|vm| *vm != id);
                self.drop_if_unused(*pair);
            }
        }
        let candidates: BTreeSet<Id> =
            labels.iter().flat_map(|pair| &self.pairs.get(*pair).lbs).copied().collect();
        let now: Vec<Id> = candidates
            .into_iter()
            .filter(|lb| matches(&self.lbs.get(*lb).clauses, &labels))
            .collect();
        let before = mem::replace(&mut self.vms.get_mut(id).lbs, now.clone());
        let mut affected = Vec::new();
        for lb in &before {
            if now.binary_search(lb).is_err() {
                self.lbs.get_mut(*lb).vms.remove(&id);
                affected.push(*lb);
            }
        }
        for lb in now {
            if self.lbs.get_mut(lb).vms.insert(id) || changed {
                affected.push(lb);
            }
        }
        self.keys(&affected)
    }

    fn has_labels(&self, id: Id, namespace: &str, labels: &Labels) -> bool {
        let have = &self.vms.get(id).labels;
        have.len() == labels.len()
            && labels.iter().all(|(key, value)| {
                let pair = self.pair_ids.get(&pair_key(namespace, key, value));
                pair.is_some_and(|pair| have.binary_search(pair).is_ok())
            })
    }

    fn pair(&mut self, namespace: &str, key: &str, value: &str) -> Id {
        let key = pair_key(namespace, key, value);
        if let Some(id) = self.pair_ids.get(&key) {
            return *id;
        }
        let id = self.pairs.add(LabelPair { key, ..LabelPair::default() });
        self.pair_ids.insert(key, id);
        id
    }

    fn drop_if_unused(&mut self, id: Id) {
        let pair = self.pairs.get(id);
        if pair.vms.is_empty() && pair.lbs.is_empty() && pair.uses == 0 {
            let pair = self.pairs.take(id);
            self.pair_ids.remove(&pair.key);
        }
    }
}

/// Addresses that a VM reports.
fn addresses(vm: &Vm) -> impl Iterator<Item = IpAddr> {
    vm.nics.iter().flat_map(|nic| nic.addresses.iter().copied())
}

/// Whether the sorted `labels` contain at least one pair of every clause. `false` if there are no
/// clauses.
fn matches(clauses: &[Vec<Id>], labels: &[Id]) -> bool {
    let has_one = |clause: &Vec<Id>| {
        if clause.len() < labels.len() {
            clause.iter().any(|pair| labels.binary_search(pair).is_ok())
        } else {
            labels.iter().any(|pair| clause.binary_search(pair).is_ok())
        }
    };
    !clauses.is_empty() && clauses.iter().all(has_one)
}

fn qualified(namespace: &str, name: &str) -> Box<str> {
    format!("{namespace}/{name}").into()
}

/// Key of a pair of label and value in a namespace: 16 bytes of a digest. They take less memory
/// than the text. Tenants choose labels, and no tenant must be able to find a pair that has the key
/// of another tenant's pair. Therefore the digest is cryptographic.
fn pair_key(namespace: &str, label: &str, value: &str) -> PairKey {
    // A namespace contains no slash, and the labels of a VM contain no `=`. So two pairs that VMs
    // can have never have the same text.
    let digest = Sha256::digest(format!("{namespace}/{label}={value}"));
    std::array::from_fn(|at| digest[at])
}

/// Digest of a selector. Two different selectors never give the same input to the hash, although
/// labels and values may contain any character: the length of each label and value is hashed before
/// its text, and the number of a label's values is hashed before the label.
fn selector_digest(selector: &VmSelector) -> [u8; 32] {
    let mut hash = Sha256::new();
    for (label, values) in selector {
        hash.update(values.len().to_le_bytes());
        for text in std::iter::once(label).chain(values) {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
