//! Answers ConversionReviews of the API server. [`crate::domain::conversion`] converts each
//! LoadBalancer in a review.
//!
//! Invariants:
//! * Objects are read, converted and written one after the other, so only one at a time is in
//!   memory as a tree of values. An API server sends one object in a review, because it decodes
//!   each object of a list by itself (`DecodeListItem` in k8s.io/apiserver/pkg/storage/etcd3).
//!   Other clients may send many objects.
//! * Only the parts of an object that differ between versions are parsed. The other parts are
//!   copied as text.
//! * Any client may send a review, so the values of a review are counted before they are parsed. No
//!   review takes more memory or time than the limits below allow.
//! * A successful answer has the same objects as the request, in the same order.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::request_body::clipped;
use crate::api::{ANNOTATION_V1ALPHA1_FIELDS, ANNOTATION_V1BETA1_FIELDS};
use crate::domain::conversion::annotations::values_to_parse;
use crate::domain::conversion::{Version, convert};
use crate::domain::limits::json_size::{maps, most_values};
use crate::domain::limits::text::{LONGEST_TEXT, cut};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// Maximum size of one object, in bytes. The API server accepts requests of up to 3 MiB, and etcd
/// stores objects of up to 1.5 MiB.
const LARGEST_OBJECT: usize = 3 << 20;
/// Maximum number of values in one object, without its annotations. No valid object reaches the
/// limit: the largest object that the schema allows has fewer than 20,000 values.
const MOST_VALUES_OF_OBJECT: usize = 60_000;
/// Maximum number of values in the annotations of one object. No stored object reaches the limit:
/// the API server stores at most 256 KiB of annotations, which are fewer than 90,000 annotations
/// even if their values are empty.
const MOST_VALUES_OF_ANNOTATIONS: usize = 100_000;
/// Maximum number of maps in one object. No valid object reaches the limit: the largest object that
/// the schema allows has fewer than 2,000 maps.
const MOST_MAPS_OF_OBJECT: usize = 15_000;
/// Maximum number of values in one review. A review of one object never reaches the limit: the
/// object has at most 60,000 values, 100,000 more in its annotations, and 60,000 more in the text
/// of each of two annotations. The conversion of 1,500,000 values takes less than a second.
const MOST_VALUES: usize = 1_500_000;
/// Maximum size of an answer, in bytes: twice the largest request. The size is limited, because the
/// answer is in memory together with the request. The answer for one object stays far below the
/// limit, because an object grows only by the annotation that keeps the fields which the desired
/// version does not have. This annotation has at most 256 KiB.
const LARGEST_ANSWER: usize = 16 << 20;
/// Maximum size of a review's UID, in bytes. A UID from the API server has 36 bytes.
const LONGEST_UID: usize = 256;

#[derive(Deserialize)]
struct ConversionReview<'a> {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Option<ConversionRequest<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConversionRequest<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    #[serde(borrow, default)]
    objects: Option<&'a RawValue>,
}

/// Answer to a ConversionReview.
#[derive(Debug)]
pub struct ConversionAnswer {
    /// The answer, as JSON.
    pub text: Vec<u8>,
    /// Verdict that metrics show: `allowed` if all objects were converted, else `refused`.
    pub verdict: &'static str,
}

/// Answers a ConversionReview. `Err`: reason why the body is not a valid ConversionReview.
pub fn review(body: &[u8]) -> Result<ConversionAnswer, String> {
    let question: ConversionReview<'_> = serde_json::from_slice(body)
        .map_err(|error| format!("the body is not a {KIND}: {error}"))?;
    if (question.api_version.as_str(), question.kind.as_str()) != (API_VERSION, KIND) {
        return Err(format!(
            "kind {} of {}: must be kind {KIND} of {API_VERSION}",
            clipped(&question.kind),
            clipped(&question.api_version)
        ));
    }
    let Some(request) = question.request else {
        return Err(format!("the {KIND} has no request"));
    };
    if request.uid.len() > LONGEST_UID {
        return Err(format!("request.uid: must have at most {LONGEST_UID} bytes"));
    }
    let mut answer = AnswerText::new(body.len(), LARGEST_ANSWER);
    let uid = Value::from(request.uid.as_str());
    answer.text.extend_from_slice(
        format!(
            r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}","response":{{"uid":{uid},"convertedObjects":["#
        )
        .as_bytes(),
    );
    let before = answer.text.len();
    let failure = convert_all(&request, ReviewBudget::FULL, &mut answer).err();
    let mut text = answer.text;
    let (verdict, result) = match failure {
        None => ("allowed", json!({"status": "Success"})),
        Some(message) => {
            // A parse error may repeat a text of the request.
            let message = cut(message, LONGEST_TEXT);
            // Any caller may send any number of such reviews, so a warning of each could fill the
            // log.
            tracing::debug!(message, "cannot convert the objects of a review");
            text.truncate(before);
            ("refused", json!({"status": "Failure", "message": message}))
        }
    };
    text.extend_from_slice(format!(r#"],"result":{result}}}}}"#).as_bytes());
    Ok(ConversionAnswer { text, verdict })
}

/// Converts all objects of the request, and appends them to the answer, separated by commas. `Err`:
/// reason why an object could not be converted, or why the desired version or the list is invalid.
/// The objects after a fault are not converted.
fn convert_all(
    request: &ConversionRequest<'_>,
    mut budget: ReviewBudget,
    answer: &mut AnswerText,
) -> Result<(), String> {
    let to = Version::parse(&request.desired_api_version).map_err(|error| error.to_string())?;
    let Some(objects) = request.objects else { return Ok(()) };
    let mut failure = None;
    let mut index = 0;
    let mut one = |object: &RawValue| {
        let comma = if index > 0 { "," } else { "" };
        let converted =
            answer.append(comma).and_then(|()| convert_one(object.get(), to, &mut budget, answer));
        failure = converted.err().map(|error| format!("objects[{index}]: {error}"));
        index += 1;
        failure.is_none()
    };
    let mut reader = serde_json::Deserializer::from_str(objects.get());
    let read = reader.deserialize_seq(EachOf(&mut one));
    match failure {
        Some(failure) => Err(failure),
        None => read.map_err(|error| format!("objects: {error}")),
    }
}

/// Visitor that calls a function with each item of a list, until the function returns false or the
/// list ends. Only one item is in memory at a time.
struct EachOf<'f>(&'f mut dyn FnMut(&RawValue) -> bool);

impl<'de> Visitor<'de> for EachOf<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(text) = list.next_element::<&RawValue>()? {
            if !(self.0)(text) {
                return Err(A::Error::custom("ended early"));
            }
        }
        Ok(())
    }
}

/// Numbers of values and maps that may still be parsed.
struct ReviewBudget {
    /// Number of values that may still be parsed in the review.
    review: usize,
    /// Number of values that may still be parsed in the current object, without its annotations.
    object: usize,
    /// Number of maps that may still be parsed in the current object.
    maps: usize,
}

impl ReviewBudget {
    const FULL: Self = Self { review: MOST_VALUES, object: 0, maps: 0 };

    /// Subtracts `values` from the budget of the current object and from that of the review. `Err`:
    /// the object, or the review, has too many values.
    fn spend(&mut self, values: usize) -> Result<(), String> {
        self.object = self.object.checked_sub(values).ok_or_else(|| {
            format!("has more than {MOST_VALUES_OF_OBJECT} values: no LoadBalancer needs so many")
        })?;
        self.spend_in_review(values)
    }

    /// Subtracts `values` from the budget of the review only. `Err`: the review has too many.
    fn spend_in_review(&mut self, values: usize) -> Result<(), String> {
        self.review = self.review.checked_sub(values).ok_or_else(|| {
            format!("more than {MOST_VALUES} values in one review: list fewer objects at a time")
        })?;
        Ok(())
    }

    fn read(&mut self, text: &RawValue) -> Result<Value, String> {
        self.spend(most_values(text.get()))?;
        self.parse(text)
    }

    /// Parses the annotations of an object. They have a higher limit than the object's other
    /// values, because a tenant may write as many annotations as the API server stores, and a
    /// stored object must not be refused.
    fn read_annotations(&mut self, text: &RawValue) -> Result<Value, String> {
        let values = most_values(text.get());
        if values > MOST_VALUES_OF_ANNOTATIONS {
            return Err(format!(
                "has more than {MOST_VALUES_OF_ANNOTATIONS} values in its annotations: no API server stores so many"
            ));
        }
        self.spend_in_review(values)?;
        self.parse(text)
    }

    /// Subtracts the number of maps in `text` from the budget, and parses `text`. The caller has
    /// already subtracted the number of values in `text`.
    fn parse(&mut self, text: &RawValue) -> Result<Value, String> {
        self.maps = self.maps.checked_sub(maps(text.get())).ok_or_else(|| {
            format!("has more than {MOST_MAPS_OF_OBJECT} maps: no LoadBalancer needs so many")
        })?;
        serde_json::from_str(text.get()).map_err(|error| error.to_string())
    }
}

/// Map from the name of each field of an object to the field's unparsed JSON.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Converts the object in `text` to the version `to`, and appends it to the answer. `Err`: reason
/// why it could not be converted.
fn convert_one(
    text: &str,
    to: Version,
    budget: &mut ReviewBudget,
    answer: &mut AnswerText,
) -> Result<(), String> {
    if text.len() > LARGEST_OBJECT {
        return Err(format!("has {} bytes: must have at most {LARGEST_OBJECT}", text.len()));
    }
    (budget.object, budget.maps) = (MOST_VALUES_OF_OBJECT, MOST_MAPS_OF_OBJECT);
    let mut rest = fields_of(text, budget)?;
    let mut read = Map::new();
    if let Some(version) = rest.remove("apiVersion") {
        let version = budget.read(version)?;
        if Version::parse(version.as_str().unwrap_or_default()) == Ok(to) {
            return answer.append(text);
        }
        read.insert("apiVersion".to_owned(), version);
    }
    for section in ["spec", "status"] {
        if let Some(text) = rest.remove(section) {
            read.insert(section.to_owned(), budget.read(text)?);
        }
    }
    let mut metadata = match rest.get("metadata").filter(|text| text.get().starts_with('{')) {
        Some(text) => Some(fields_of(text.get(), budget)?),
        None => None,
    };
    if let Some(metadata) = &mut metadata {
        rest.remove("metadata");
        let annotations = metadata.remove("annotations").map(|text| budget.read_annotations(text));
        let annotations = annotations.transpose()?;
        // `convert` also parses the text in these annotations, unless the text counts as another
        // program's. So the values in the text count for the review.
        for key in [ANNOTATION_V1ALPHA1_FIELDS, ANNOTATION_V1BETA1_FIELDS] {
            let text = annotations.as_ref().and_then(|annotations| annotations.get(key)?.as_str());
            budget.spend_in_review(text.map_or(0, values_to_parse))?;
        }
        let annotations = annotations.map(|annotations| ("annotations".to_owned(), annotations));
        read.insert("metadata".to_owned(), Value::Object(annotations.into_iter().collect()));
    }
    let mut sections = convert(Value::Object(read), to).map_err(|error| error.to_string())?;
    let annotations = sections
        .as_object_mut()
        .and_then(|fields| fields.remove("metadata")?.get_mut("annotations").map(Value::take));
    let metadata = metadata.map(|rest| ConvertedMetadata { rest, annotations });
    let object = ConvertedObject { sections, rest, metadata };
    serde_json::to_writer(answer, &object).map_err(|error| error.to_string())
}

fn fields_of<'a>(text: &'a str, budget: &mut ReviewBudget) -> Result<Fields<'a>, String> {
    let fields: Fields<'a> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    budget.spend(fields.len() + 1)?;
    Ok(fields)
}

/// Converted object, in the form in which it is written.
#[derive(Serialize)]
struct ConvertedObject<'a> {
    /// Fields that the conversion replaces: `apiVersion`, `spec` and `status`.
    #[serde(flatten)]
    sections: Value,
    /// Other fields, which are written as they were read.
    #[serde(flatten)]
    rest: Fields<'a>,
    /// Metadata. `None`: the object has no metadata, or its metadata is no JSON object and is in
    /// `rest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<ConvertedMetadata<'a>>,
}

/// Metadata of a [`ConvertedObject`].
#[derive(Serialize)]
struct ConvertedMetadata<'a> {
    /// Fields that are written as they were read.
    #[serde(flatten)]
    rest: Fields<'a>,
    /// Converted annotations. `None`: the object has no annotations.
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Value>,
}

/// Text of an answer. A write beyond the limit `most` fails.
struct AnswerText {
    text: Vec<u8>,
    /// Maximum size of the text, in bytes.
    most: usize,
}

impl AnswerText {
    /// Size, in bytes, of the memory that is reserved for the end of the answer: the text after the
    /// last object.
    const END: usize = 4096;
    /// Largest request, in bytes, that counts as small. The memory for the answer to a small
    /// request may grow step by step.
    const SMALL: usize = 1 << 20;

    /// Starts an answer to a request of `request` bytes. For a large request, all memory is
    /// reserved at once. If the memory grew step by step, the allocator would copy the text, and
    /// both copies would be in memory. Reserved memory costs nothing until it is written.
    fn new(request: usize, most: usize) -> Self {
        let reserved = if request > Self::SMALL { most } else { request / 4 * 5 };
        Self { text: Vec::with_capacity(reserved + Self::END), most }
    }

    fn append(&mut self, text: &str) -> Result<(), String> {
        self.write_all(text.as_bytes()).map_err(|error| error.to_string())
    }
}

impl io::Write for AnswerText {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.text.len() + text.len() > self.most {
            let why = "the answer would be too large: list fewer objects at a time";
            return Err(io::Error::other(why));
        }
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
