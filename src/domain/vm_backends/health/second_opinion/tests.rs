//! Tests of the answers and their meaning, of the replicas that answer, and of the questions.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::{
    AskedTarget, MOST_ASKED, Opinion, OpinionAnswer, OpinionQuestion, ReplicaPlace, sample,
};

fn place(replica: &str, node: &str) -> ReplicaPlace {
    ReplicaPlace { replica: replica.into(), node: node.into() }
}

fn asked(lb: &str, number: u8) -> AskedTarget {
    AskedTarget { lb: lb.into(), address: Ipv4Addr::new(10, 0, 0, number).into() }
}

fn question(targets: usize) -> OpinionQuestion {
    let targets = (0..targets).map(|n| asked("default/web", u8::try_from(n).unwrap())).collect();
    OpinionQuestion { by: place("a", "one"), at: "12:00".into(), targets }
}

#[test]
fn an_answer_is_to_one_question_and_the_leaders_own_node_decides_nothing() {
    let question = question(4);
    for (node, passed, failed, opinion) in [
        ("two", 4, 0, Opinion::Well),
        ("two", 3, 1, Opinion::Well),
        ("two", 2, 2, Opinion::Dead),
        ("two", 0, 4, Opinion::Dead),
        ("one", 0, 4, Opinion::SameNode),
        // The answering replica is on the leader's node, and reaches the targets. So only the
        // leader's pod does not reach the targets.
        ("one", 4, 0, Opinion::Well),
        // The nodes are unknown, because the operator runs without the chart.
        ("", 0, 4, Opinion::Dead),
    ] {
        let answer = question.answer(&place("b", node), passed, failed).unwrap();
        assert_eq!(question.opinion(Some(&answer)), opinion, "{answer:?}");
        let words = opinion.words(&question, Some(&answer));
        assert!(words.contains('b') && !words.contains("  "), "{words}");
        for other in [
            OpinionQuestion { at: "12:01".into(), ..question.clone() },
            OpinionQuestion { by: place("c", "one"), ..question.clone() },
        ] {
            assert_eq!(other.opinion(Some(&answer)), Opinion::None);
        }
        let nodeless = OpinionQuestion { by: place("a", ""), ..question.clone() };
        let answer = OpinionAnswer { to: nodeless.by.clone(), ..answer };
        assert_ne!(nodeless.opinion(Some(&answer)), Opinion::SameNode);
    }
    assert_eq!(question.opinion(None), Opinion::None);
}

#[test]
fn one_replica_answers_and_one_of_another_node_after_one_of_the_same() {
    let question = question(2);
    let (own, beside, away) = (place("a", "one"), place("b", "one"), place("c", "two"));
    let from = |place, failed| question.answer(place, 2 - failed, failed);
    for (who, given, wanted) in [
        (&own, None, false),
        (&beside, None, true),
        (&away, None, true),
        (&beside, from(&beside, 2), false),
        (&away, from(&beside, 2), true),
        (&away, from(&beside, 0), false),
        (&beside, from(&away, 2), false),
        (&place("d", "two"), from(&away, 2), false),
    ] {
        assert_eq!(question.wants_answer_of(who, given.as_ref()), wanted, "{who:?} {given:?}");
    }
}

#[test]
fn who_could_ask_fewer_than_half_says_nothing() {
    let answer = |passed, failed| question(5).answer(&place("b", "two"), passed, failed);
    assert_eq!((answer(0, 0), answer(2, 0), answer(0, 2)), (None, None, None));
    assert!(answer(2, 1).is_some());
    assert_eq!(question(0).answer(&place("b", "two"), 0, 0), None);
}

#[test]
fn notes_are_read_as_written_and_nothing_longer() {
    let longest = |n: u8| asked(&format!("{}/{}", "n".repeat(63), "l".repeat(253)), n);
    let targets = (0..32).map(longest).collect();
    let question = OpinionQuestion { targets, ..question(0) };
    let text = serde_json::to_string(&question).unwrap();
    assert_eq!(OpinionQuestion::read(&text).as_ref(), Some(&question));
    let more = OpinionQuestion {
        targets: [question.targets.clone(), vec![longest(33)]].concat(),
        ..question
    };
    assert_eq!(OpinionQuestion::read(&serde_json::to_string(&more).unwrap()), None);
    let answer = more.answer(&place("b", "two"), 30, 1).unwrap();
    assert_eq!(OpinionAnswer::read(&serde_json::to_string(&answer).unwrap()), Some(answer));
    for bad in ["", "{}", "[]", &" ".repeat(1 << 20), r#"{"by":{"replica":"a","node":""},"at":""}"#]
    {
        assert_eq!((OpinionQuestion::read(bad), OpinionAnswer::read(bad)), (None, None));
    }
}

#[test]
fn a_sample_is_of_different_load_balancers_and_vms_and_of_no_order() {
    let held = |lbs: u8| {
        (0..lbs).flat_map(|lb| (0..3).map(move |n| asked(&format!("ns/{lb}"), 3 * lb.min(80) + n)))
    };
    let few = sample(held(5), "1");
    assert_eq!(few.len(), 5);
    let many = sample(held(80), "1");
    assert_eq!(many.len(), MOST_ASKED);
    let lbs: BTreeSet<&str> = many.iter().map(|asked| asked.lb.as_str()).collect();
    assert_eq!(lbs.len(), MOST_ASKED);
    assert_eq!(many, sample(held(80), "1"));
    // Another seed picks other targets. So a tenant whose LoadBalancers have the first names in
    // order does not fill every question.
    let other = sample(held(80), "2");
    assert!(other.iter().any(|asked| !lbs.contains(asked.lb.as_str())));
    let one_vm = (0..9).map(|lb| asked(&format!("ns/{lb}"), 1));
    assert_eq!(sample(one_vm, "1").len(), 1);
}
