//! Tests of conversion reviews with valid and invalid content.

use super::*;

const ALPHA: &str = "loadbalancer.harvesterhci.io/v1alpha1";
const BETA: &str = "loadbalancer.harvesterhci.io/v1beta1";

fn lb(version: &str, name: &str) -> Value {
    json!({
        "apiVersion": version, "kind": "LoadBalancer", "metadata": {"name": name},
        "spec": {"ipam": "pool", "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}]},
    })
}

fn ask(desired: &str, objects: &[Value]) -> Value {
    let question = json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "request": {"uid": "u-1", "desiredAPIVersion": desired, "objects": objects},
    });
    serde_json::from_slice(&review(question.to_string().as_bytes()).unwrap().text).unwrap()
}

#[test]
fn as_many_objects_in_their_order_in_the_version_asked_for() {
    let objects = [lb(BETA, "a"), lb(ALPHA, "b"), lb(BETA, "c")];
    let answer = ask(ALPHA, &objects);
    assert_eq!((&answer["apiVersion"], &answer["kind"]), (&json!(API_VERSION), &json!(KIND)));
    assert_eq!(answer["response"]["uid"], "u-1");
    assert_eq!(answer["response"]["result"], json!({"status": "Success"}));
    let expected = [lb(ALPHA, "a"), lb(ALPHA, "b"), lb(ALPHA, "c")];
    assert_eq!(answer["response"]["convertedObjects"], json!(expected));
    assert_eq!(ask(BETA, &[])["response"]["convertedObjects"], json!([]));
}

#[test]
fn one_that_is_no_load_balancer_fails_the_review_and_is_named() {
    let strange = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}});
    let answer = ask(BETA, &[lb(ALPHA, "a"), strange]);
    assert_eq!(answer["response"]["result"]["status"], "Failure");
    let message = answer["response"]["result"]["message"].as_str().unwrap();
    assert!(message.starts_with("objects[1]: \"v1\" is not a version"), "{message}");
    assert_eq!(answer["response"]["convertedObjects"], json!([]));
    let answer = ask("loadbalancer.harvesterhci.io/v2", &[lb(ALPHA, "a")]);
    assert_eq!(answer["response"]["result"]["status"], "Failure");
}

#[test]
fn what_is_no_review_is_refused() {
    let review_of = |text: &str| review(text.as_bytes()).unwrap_err();
    for text in ["", "{", "[]", "null", "\"x\"", "{\"request\":5}", "\u{feff}{}"] {
        review_of(text);
    }
    assert!(review(&[0xff, 0xfe]).is_err());
    let older = json!({"apiVersion": "apiextensions.k8s.io/v1beta1", "kind": KIND});
    assert!(
        review_of(&older.to_string())
            .contains("must be kind ConversionReview of apiextensions.k8s.io/v1")
    );
    let empty = json!({"apiVersion": API_VERSION, "kind": KIND});
    assert!(review_of(&empty.to_string()).contains("no request"));
}

fn refused(objects: &str) -> String {
    let question = format!(
        r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}","request":{{"uid":"u-1",
        "desiredAPIVersion":"{ALPHA}","objects":{objects}}}}}"#
    );
    let answer = review(question.as_bytes()).unwrap();
    assert_eq!(answer.verdict, "refused");
    let answer: Value = serde_json::from_slice(&answer.text).unwrap();
    assert_eq!(answer["response"]["convertedObjects"], json!([]));
    answer["response"]["result"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_failure_does_not_repeat_a_long_text() {
    let message = refused(&json!(["x".repeat(100_000)]).to_string());
    assert!(message.starts_with("objects[0]: invalid type: string"), "{message:.100}");
    assert_eq!(message.len(), LONGEST_TEXT);
}

/// Text with too many values is refused before it is parsed. The parsed values would take a hundred
/// times the memory that the text takes.
#[test]
fn more_values_than_any_object_needs_are_not_read() {
    let numbers = format!("[{}0]", "0,".repeat(MOST_VALUES_OF_OBJECT));
    let fields: Vec<String> = (0..MOST_VALUES_OF_OBJECT).map(|n| format!(r#""{n:x}":0"#)).collect();
    let fields = fields.join(",");
    for hostile in [
        format!(r#""spec":{{"x":{numbers}}}"#),
        format!(r#""status":{numbers}"#),
        format!(r#""metadata":{{{fields}}}"#),
        fields.clone(),
    ] {
        let message = refused(&format!(r#"[{{"apiVersion":"{BETA}",{hostile}}}]"#));
        assert_eq!(
            message,
            "objects[0]: has more than 60000 values: no LoadBalancer needs so many"
        );
    }
    let annotations = format!(r#"{{"x":[{}0]}}"#, "0,".repeat(MOST_VALUES_OF_ANNOTATIONS));
    let object = format!(r#"{{"apiVersion":"{BETA}","metadata":{{"annotations":{annotations}}}}}"#);
    assert_eq!(
        refused(&format!("[{object}]")),
        "objects[0]: has more than 100000 values in its annotations: no API server stores so many"
    );
    let maps = format!("[{}{{}}]", "{},".repeat(MOST_MAPS_OF_OBJECT));
    let message = refused(&format!(r#"[{{"apiVersion":"{BETA}","spec":{maps}}}]"#));
    assert_eq!(message, "objects[0]: has more than 15000 maps: no LoadBalancer needs so many");
    // Fields that the conversion does not parse may have any number of values, because they cost
    // only the memory of their text.
    let object = format!(r#"{{"apiVersion":"{BETA}","x":{numbers},"metadata":{{"y":{numbers}}}}}"#);
    let converted = ask(ALPHA, &[serde_json::from_str(&object).unwrap()]);
    let converted = &converted["response"]["convertedObjects"][0];
    assert_eq!(converted["x"].as_array().unwrap().len(), MOST_VALUES_OF_OBJECT + 1);
    assert_eq!(converted["x"], converted["metadata"]["y"]);
}

/// The API server stores any text in 256 KiB of annotations. If one such object could not be
/// converted, each list that contains the object would fail.
#[test]
fn no_annotations_that_are_stored_make_a_list_fail() {
    let travels = json!({"spec": {"x": vec![0; MOST_VALUES_OF_OBJECT]}}).to_string();
    let many: Map<String, Value> = (0..90_000).map(|n| (format!("{n:x}"), json!(""))).collect();
    let mut all = vec![many];
    for text in [travels, "{".repeat(15_001), "{".repeat(260_000), ",".repeat(60_001)] {
        for key in [ANNOTATION_V1ALPHA1_FIELDS, ANNOTATION_V1BETA1_FIELDS] {
            all.push(Map::from_iter([(key.to_owned(), json!(text))]));
        }
    }
    for annotations in all {
        let mut object = lb(BETA, "a");
        object["metadata"]["annotations"] = Value::Object(annotations);
        let answer = ask(ALPHA, &[lb(BETA, "b"), object.clone()]);
        assert_eq!(answer["response"]["result"], json!({"status": "Success"}));
        let converted = &answer["response"]["convertedObjects"][1];
        assert!(converted["metadata"] == object["metadata"]);
    }
}

#[test]
fn what_is_too_large_or_no_object_is_named() {
    let long = "x".repeat(LARGEST_OBJECT);
    let large = format!(r#"{{"apiVersion":"{BETA}","x":"{long}"}}"#);
    let message = refused(&format!("[{},{large}]", lb(BETA, "a")));
    assert!(message.starts_with("objects[1]: has 3145"), "{message}");
    let part = format!(r#"{{"apiVersion":"{BETA}","spec":[{}0]}}"#, "0,".repeat(50_000));
    let message = refused(&format!("[{part}{}]", format!(",{part}").repeat(30)));
    assert_eq!(
        message,
        "objects[29]: more than 1500000 values in one review: list fewer objects at a time"
    );
    assert!(refused("[0,0]").starts_with("objects[0]: invalid type"), "{message}");
    assert!(refused("{}").starts_with("objects: invalid type"), "{message}");
    let objects = json!([lb(BETA, "a"), lb(BETA, "b")]).to_string();
    let text: &RawValue = serde_json::from_str(&objects).unwrap();
    let request = ConversionRequest {
        uid: String::new(),
        desired_api_version: ALPHA.to_owned(),
        objects: Some(text),
    };
    let mut answer = AnswerText::new(0, objects.len() / 2);
    let message = convert_all(&request, ReviewBudget::FULL, &mut answer).unwrap_err();
    assert_eq!(message, "objects[1]: the answer would be too large: list fewer objects at a time");
}

/// Memory for a large answer is reserved at once. If the memory grew step by step, the text would
/// be copied, and both copies would be in memory.
#[test]
fn the_memory_of_a_large_answer_is_reserved_once() {
    let most = AnswerText::SMALL * 4;
    let mut answer = AnswerText::new(AnswerText::SMALL + 1, most);
    let reserved = answer.text.capacity();
    let kib = "x".repeat(1024);
    while answer.append(&kib).is_ok() {}
    assert_eq!(answer.text.len(), most);
    answer.text.extend_from_slice(&[b' '; AnswerText::END]);
    assert_eq!(answer.text.capacity(), reserved);
}

/// Fields that no version defines may have any content. The conversion writes such fields as the
/// text that it read.
#[test]
fn text_that_is_not_read_passes_as_it_is() {
    for (metadata, expected) in [
        (r#"{"name": "a", "x": 1e999, "annotations": {}}"#, r#"{"name":"a","x":1e999}"#),
        (
            r#"{"labels":{"b":"1","a":"2"},"annotations":{"k":"v"}}"#,
            r#"{"labels":{"b":"1","a":"2"},"annotations":{"k":"v"}}"#,
        ),
        ("null", "null"),
        ("7", "7"),
    ] {
        let object = format!(
            r#"{{"apiVersion":"{ALPHA}","metadata":{metadata},"spec":{{"ipam":"dhcp"}},"\u00e9":[ 1 ]}}"#
        );
        let mut answer = AnswerText::new(0, LARGEST_ANSWER);
        let mut budget = ReviewBudget::FULL;
        convert_one(&object, Version::V1beta1, &mut budget, &mut answer).unwrap();
        let answer = String::from_utf8(answer.text).unwrap();
        let read = format!(r#"{{"apiVersion":"{BETA}","spec":{{"ipam":"dhcp"}},"#);
        assert!(answer.starts_with(&read), "{answer}");
        for part in [r#""é":[ 1 ]"#, &format!(r#""metadata":{expected}"#)] {
            assert!(answer.contains(part), "{answer}");
        }
    }
}

/// The test prints the time of the conversion and asserts no limit, so that it does not fail on a
/// busy machine.
#[test]
fn a_list_of_ten_thousand_is_answered() {
    for count in [1_000, 10_000] {
        let objects: Vec<Value> = (0..count).map(|n| lb(BETA, &format!("lb-{n}"))).collect();
        let began = std::time::Instant::now();
        let answer = ask(ALPHA, &objects);
        let converted = answer["response"]["convertedObjects"].as_array().unwrap();
        assert_eq!(converted.len(), count);
        assert_eq!(converted[count - 1]["metadata"]["name"], format!("lb-{}", count - 1));
        eprintln!("{count} objects in {:?}", began.elapsed());
    }
}
