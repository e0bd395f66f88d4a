//! Second opinion: the leader asks the other replicas whether they reach the targets that the
//! leader does not reach. This module has the question, the answer and the meaning of the answer.
//!
//! Question and answer are annotations of the Lease, which all replicas read anyway. The
//! annotations give no account new power, because an account that may write them could also become
//! the leader. A question names each target only by its LoadBalancer and address. The answering
//! replica reads from the cluster whether there is such a target, and which probe the target has.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::ProbePhase;

/// Largest number of targets in one question: enough to show whether most of the doubted targets
/// fail, and few enough for a replica to probe quickly.
pub const MOST_ASKED: usize = 32;
/// End of the text in conditions and Events about doubted failures, while the leader waits for the
/// answer to its first question. Later, the text ends with [`Opinion::words`]. "them" are the VMs
/// whose failures are doubted.
pub const ASKED: &str = "another replica is asked whether it reaches them";
/// Maximum length of a question or answer that is read, in bytes. Every valid question or answer is
/// shorter.
const LONGEST: usize = 16 * 1024;

/// Replica, and the node that it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaPlace {
    /// Name of the replica in the Lease.
    pub replica: String,
    /// Node of the replica; empty if unknown.
    pub node: String,
}

impl ReplicaPlace {
    /// Text that names the replica and its node.
    fn words(&self) -> String {
        match self.node.as_str() {
            "" => self.replica.clone(),
            node => format!("{} on node {node}", self.replica),
        }
    }

    fn is_beside(&self, other: &Self) -> bool {
        !self.node.is_empty() && self.node == other.node
    }
}

/// Target that the asking replica does not reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedTarget {
    /// LoadBalancer of the target, `namespace/name`.
    pub lb: String,
    /// Address of the VM.
    pub address: IpAddr,
}

/// Question whether other replicas reach targets that the leader does not reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpinionQuestion {
    /// Asking replica.
    pub by: ReplicaPlace,
    /// Time of the question (RFC 3339). No two questions of a replica have the same time.
    pub at: String,
    /// Targets that the question is about.
    pub targets: Vec<AskedTarget>,
}

/// Answer of a replica to another replica's [`OpinionQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpinionAnswer {
    /// Replica that asked.
    pub to: ReplicaPlace,
    /// Time of the question.
    pub at: String,
    /// Answering replica.
    pub by: ReplicaPlace,
    /// Number of targets that the answering replica has probed with success.
    pub passed: usize,
    /// Number of targets that the answering replica has probed without success.
    pub failed: usize,
}

/// Conclusion that the leader draws from an answer to its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// No opinion: there is no answer, or the answer is to another question.
    None,
    /// Half of the probed targets or more also fail for the other replica. But that replica is on
    /// the leader's node, and the node may be at fault.
    SameNode,
    /// Most of the probed targets pass for the other replica.
    Well,
    /// Half of the probed targets or more also fail for the other replica. That replica is on
    /// another node than the leader, or one of the two nodes is not known.
    Dead,
}

impl OpinionQuestion {
    /// Parses a question from the text of the Lease's annotation. `None`: the text is no question,
    /// is longer than 16 KiB, or has more than [`MOST_ASKED`] targets.
    pub fn read(text: &str) -> Option<Self> {
        let question: Self = read(text)?;
        (question.targets.len() <= MOST_ASKED).then_some(question)
    }

    /// Conclusion from `answer` to this question. [`Opinion::None`]: there is no answer, or it is
    /// to another question.
    pub fn opinion(&self, answer: Option<&OpinionAnswer>) -> Opinion {
        match answer.filter(|answer| answer.to == self.by && answer.at == self.at) {
            Some(answer) if answer.passed > answer.failed => Opinion::Well,
            Some(answer) if answer.by.is_beside(&self.by) => Opinion::SameNode,
            Some(_) => Opinion::Dead,
            None => Opinion::None,
        }
    }

    /// Whether the replica at `place` must answer this question. `given`: answer that the Lease
    /// has, if any. `true`: another replica has asked the question, and one of these holds:
    ///
    /// * The Lease has no answer to this question.
    /// * The answer leads to [`Opinion::SameNode`], and the replica at `place` is not known to be
    ///   on the node of the asking replica.
    pub fn wants_answer_of(&self, place: &ReplicaPlace, given: Option<&OpinionAnswer>) -> bool {
        self.by.replica != place.replica
            && match self.opinion(given) {
                Opinion::None => true,
                Opinion::SameNode => !place.is_beside(&self.by),
                Opinion::Well | Opinion::Dead => false,
            }
    }

    /// Answer of the replica `by` to this question. `None`: that replica probed no target, or fewer
    /// than half of the targets. `passed` and `failed`: numbers of targets whose probe by that
    /// replica passed or failed.
    pub fn answer(&self, by: &ReplicaPlace, passed: usize, failed: usize) -> Option<OpinionAnswer> {
        let enough = passed + failed > 0 && 2 * (passed + failed) >= self.targets.len();
        let (to, at, by) = (self.by.clone(), self.at.clone(), by.clone());
        enough.then_some(OpinionAnswer { to, at, by, passed, failed })
    }
}

impl OpinionAnswer {
    /// Parses an answer from the text of the Lease's annotation. `None`: the text is no answer, or
    /// is longer than 16 KiB.
    pub fn read(text: &str) -> Option<Self> {
        read(text)
    }
}

impl Opinion {
    /// Text for conditions and Events that says whether another replica reaches the doubted
    /// targets. `question` and `answer`: the question and answer from which this opinion follows.
    pub fn words(&self, question: &OpinionQuestion, answer: Option<&OpinionAnswer>) -> String {
        let leader = question.by.words();
        let other = answer.map(|answer| answer.by.words()).unwrap_or_default();
        match self {
            Self::None => format!(
                "only {leader} has probed them, and no other replica has answered: check the network of its node, and whether another replica runs"
            ),
            Self::SameNode => format!(
                "{other} does not reach them either, but is on the node of the leader, {leader}: check the network of that node"
            ),
            Self::Well => format!(
                "{other} reaches them and the leader, {leader}, does not: check the network of the leader's node; to let another replica lead, delete the leader's pod"
            ),
            Self::Dead => format!("{other} does not reach them either"),
        }
    }
}

/// Picks at most [`MOST_ASKED`] targets for a question. No two of them belong to the same load
/// balancer or have the same address. `held`: targets whose failures the leader doubts. `at`: time
/// of the question, which is the seed of the random choice.
pub fn sample(held: impl IntoIterator<Item = AskedTarget>, at: &str) -> Vec<AskedTarget> {
    let chance = |asked: &AskedTarget| ProbePhase::of(&[at, &asked.lb, &asked.address.to_string()]);
    let mut of_lbs = BTreeMap::<String, Vec<AskedTarget>>::new();
    for asked in held {
        of_lbs.entry(asked.lb.clone()).or_default().push(asked);
    }
    let mut seen = HashSet::new();
    let mut picked: Vec<AskedTarget> = of_lbs
        .into_values()
        .filter_map(|targets| {
            let fresh = targets.iter().filter(|asked| !seen.contains(&asked.address));
            let one = fresh.min_by_key(|asked| chance(asked)).cloned()?;
            seen.insert(one.address);
            Some(one)
        })
        .collect();
    picked.sort_by_key(|asked| chance(asked));
    picked.truncate(MOST_ASKED);
    picked
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    (text.len() <= LONGEST).then(|| serde_json::from_str(text).ok()).flatten()
}

#[cfg(test)]
mod tests;
