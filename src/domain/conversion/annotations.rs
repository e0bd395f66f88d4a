//! Annotation in which a LoadBalancer carries the fields that the object's own version lacks.
//!
//! The annotation is compact JSON, such as
//! `{"spec":{"workloadType":"cluster"},"unset":["spec.ipam"]}`. It is absent when there is nothing
//! to carry.
//!
//! A text counts as another program's text if it is not such JSON, or if it has more values or maps
//! than any object has. The conversion leaves another program's text in place. If the conversion
//! must write the annotation itself, it puts the other program's text into the key `kept`.
//!
//! All annotations of an object together may have 256 KiB. If a converted object exceeded this
//! limit, the API server would refuse each list with this object. Fields that do not fit are
//! therefore left out and named in the key `cut`:
//!
//! * The fields of the status are left out first, because they are computed again.
//! * Within the spec, and within the status, the largest fields are left out first.
//!
//! A client of v1alpha1 may write back an object that has `cut`. The conversion to v1beta1 cannot
//! restore the fields that were left out. The conversion leaves the names of the spec's fields in
//! `cut`. By these names, admission finds the loss, and refuses the write.
//!
//! Invariant: the time of the functions here grows about in proportion to the size of the object
//! and its annotations. Reason: a tenant can write the annotation's text, and every caller can
//! reach the conversion path.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::limits::json_size::{maps, most_values};

/// Maximum size, in bytes, of all annotations of an object together, keys included.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// Maximum size, in bytes, of an object's annotations without the one that carries fields. If they
/// are larger, admission refuses every write in v1alpha1, and a write in v1beta1 that enlarges
/// them. The maximum leaves 4 KiB for the annotation that carries fields. This is enough for the
/// names of all fields that do not fit (`cut`): all field names of a LoadBalancer together have
/// less than 1 KiB.
pub const MOST_OF_OTHERS: usize = ANNOTATIONS_LIMIT - 4 * 1024;
/// Maximum number of fields of one section (spec or status) whose names are put into `cut`. More
/// names are not needed: one name of a lost spec field is enough for admission to refuse the write.
const MOST_CUT: usize = 32;
/// Maximum length of a field's name in `cut`, in characters.
const LONGEST_CUT: usize = 128;
/// Maximum number of values in a text that counts as carried fields. The conversion writes fewer:
/// the largest object that the schema allows has fewer than 20,000 values.
const MOST_VALUES: usize = 60_000;
/// Maximum number of maps in a text that counts as carried fields. The conversion writes fewer: the
/// largest object that the schema allows has fewer than 2,000 maps.
const MOST_MAPS: usize = 5_000;

/// Content of the annotation with the carried fields:
///
/// * `spec`, `status`: values that the object's API version cannot express.
/// * `unset`: names of fields that were not set before the conversion, and that the conversion back
///   would set.
/// * `kept`: text of another program that was in the annotation.
/// * `cut`: names of fields that did not fit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CarriedFields {
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    spec: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    status: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unset: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cut: Vec<String>,
}

impl CarriedFields {
    /// Adds the fields of a section that are lost or changed by the conversion to the other version
    /// and back. `section`: `spec` or `status`. `source`: the section before both conversions.
    /// `back`: the section after both conversions. `None`: the object lacks the section.
    pub(super) fn add(
        &mut self,
        section: &str,
        source: Option<Map<String, Value>>,
        back: Option<Map<String, Value>>,
    ) {
        let Some(source) = source else {
            self.unset.extend(back.map(|_| section.to_owned()));
            return;
        };
        let back = back.unwrap_or_default();
        let filled = back.keys().filter(|key| !source.contains_key(*key));
        self.unset.extend(filled.map(|key| format!("{section}.{key}")));
        let fields = if section == "spec" { &mut self.spec } else { &mut self.status };
        fields.extend(source.into_iter().filter(|(key, value)| back.get(key) != Some(value)));
    }

    /// Names of the fields that the annotation carries for a section (`spec` or `status`), each
    /// with its value. `None` as the value: the field was not set in the object before its
    /// conversion.
    pub(super) fn of<'a>(
        &'a self,
        section: &'a str,
    ) -> impl Iterator<Item = (&'a str, Option<&'a Value>)> {
        let fields = if section == "spec" { &self.spec } else { &self.status };
        let unset = self.unset.iter().filter_map(move |path| {
            path.strip_prefix(section)?.strip_prefix('.').map(|key| (key, None))
        });
        unset.chain(fields.iter().map(|(key, value)| (key.as_str(), Some(value))))
    }

    /// Whether the object had no section of this name (`spec` or `status`) before it was converted.
    pub(super) fn section_is_unset(&self, section: &str) -> bool {
        self.unset.iter().any(|path| path == section)
    }

    /// Parses the text of the annotation. `None`: no replica of the operator can have written the
    /// text.
    fn parse(text: &str) -> Option<Self> {
        if values_to_parse(text) == 0 {
            return None;
        }
        serde_json::from_str(text).ok()
    }

    fn is_only_cut(&self) -> bool {
        !self.cut.is_empty() && *self == Self { cut: self.cut.clone(), ..Self::default() }
    }

    fn text(&self) -> Option<String> {
        if *self == Self::default() { None } else { serde_json::to_string(self).ok() }
    }

    /// Text of the annotation, at most `room` bytes long. Fields that do not fit are left out. If
    /// the text is too long even without any field, the other program's text (`kept`) is left out
    /// too. `None`: there is nothing to carry, or not even the names of the left-out fields fit.
    fn text_within(mut self, room: usize) -> Option<String> {
        let text = self.text()?;
        if text.len() <= room {
            return Some(text);
        }
        // `length` is never less than the text's true length. If the name of a removed field has
        // escaped characters, fewer bytes are subtracted than the removal frees.
        let mut length = text.len() + r#","cut":[]"#.len();
        for (section, fields) in [("status", &mut self.status), ("spec", &mut self.spec)] {
            let size = |(key, value): (&String, &Value)| {
                (key.len() + value.to_string().len() + r#""":,"#.len(), key.clone())
            };
            let mut largest_first: Vec<(usize, String)> = fields.iter().map(size).collect();
            largest_first.sort_unstable_by(|a, b| b.cmp(a));
            for (place, (size, key)) in largest_first.into_iter().enumerate() {
                if length <= room {
                    break;
                }
                fields.remove(&key);
                length = length.saturating_sub(size);
                if place < MOST_CUT {
                    let key: String = key.chars().take(LONGEST_CUT).collect();
                    let path = Value::String(format!("{section}.{key}"));
                    length += path.to_string().len() + 1;
                    self.cut.extend(path.as_str().map(str::to_owned));
                }
            }
        }
        if length > room {
            self.kept = None;
        }
        self.text().filter(|text| text.len() <= room)
    }
}

/// Number of values that the conversion parses from the text of an annotation, estimated: the true
/// number is never higher. The number 0 means that the text counts as another program's, and is not
/// parsed.
pub fn values_to_parse(text: &str) -> usize {
    // A JSON list is not parsed, although serde would read it as a list of the fields' values. A
    // text above the limit is not parsed, because no API server stores it.
    if !text.starts_with('{') || text.len() > ANNOTATIONS_LIMIT || maps(text) > MOST_MAPS {
        return 0;
    }
    Some(most_values(text)).filter(|values| *values <= MOST_VALUES).unwrap_or_default()
}

/// Names of the spec's fields that `object` has lost, because they did not fit into the annotation.
/// Empty: no field is lost. `object`: the object of a write request, after its conversion.
pub fn lost(object: &Value, annotation: &str) -> Vec<String> {
    let text = object["metadata"]["annotations"][annotation].as_str().unwrap_or_default();
    let carry = CarriedFields::parse(text).unwrap_or_default();
    if carry.is_only_cut() { carry.cut } else { Vec::new() }
}

/// Size, in bytes, of all annotations of the object except `annotation`, keys included.
pub fn size_of_others(object: &Value, annotation: &str) -> usize {
    let annotations = object["metadata"]["annotations"].as_object();
    annotations.map_or(0, |annotations| size_without(annotations, annotation))
}

fn size_without(annotations: &Map<String, Value>, annotation: &str) -> usize {
    let others = annotations.iter().filter(|(key, _)| *key != annotation);
    others.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
}

/// Removes the carried fields from the annotation `annotation` of the object, and returns them. If
/// `cut` names fields of the spec, only these names stay in the annotation. Otherwise the
/// annotation gets back the text of another program (`kept`), if there is one.
pub(super) fn take(object: &mut Map<String, Value>, annotation: &str) -> CarriedFields {
    let Some(annotations) = annotations(object) else { return CarriedFields::default() };
    let text = annotations.get(annotation).and_then(Value::as_str).unwrap_or_default();
    let Some(mut carry) = CarriedFields::parse(text) else { return CarriedFields::default() };
    let mut stays = carry.kept.take();
    let lost: Vec<String> =
        carry.cut.iter().filter(|path| path.starts_with("spec.")).cloned().collect();
    if !lost.is_empty() {
        stays = CarriedFields { cut: lost, ..CarriedFields::default() }.text();
    }
    match stays {
        Some(text) => drop(annotations.insert(annotation.to_owned(), Value::String(text))),
        None => drop(annotations.remove(annotation)),
    }
    drop_if_empty(object);
    carry
}

/// Writes the fields `carry` into the annotation `annotation` of the object. Fields that do not fit
/// are left out. The annotation may already have a text:
///
/// * A text that only names lost fields (`cut`) is removed.
/// * Any other text is moved into `kept`. Exception: another program's text stays in place if
///   `carry` is empty.
pub(super) fn put(object: &mut Map<String, Value>, annotation: &str, mut carry: CarriedFields) {
    let there = annotations(object)
        .and_then(|annotations| annotations.get(annotation)?.as_str().map(str::to_owned));
    if let Some(there) = there {
        // A text in the annotation that looks like carried fields is moved into `kept`. If the text
        // stayed in place, the conversion back would take it for carried fields.
        let taken = CarriedFields::parse(&there);
        let stale = taken.as_ref().is_some_and(CarriedFields::is_only_cut);
        if (taken.is_some() || carry != CarriedFields::default()) && !stale {
            carry.kept = Some(there);
        }
        if stale && let Some(annotations) = annotations(object) {
            annotations.remove(annotation);
        }
    }
    if carry == CarriedFields::default() {
        return drop_if_empty(object);
    }
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    if annotations.is_null() {
        *annotations = Value::Object(Map::new());
    }
    let Value::Object(annotations) = annotations else { return };
    let others = size_without(annotations, annotation);
    let room = ANNOTATIONS_LIMIT.saturating_sub(others + annotation.len());
    match carry.text_within(room) {
        Some(text) => drop(annotations.insert(annotation.to_owned(), Value::String(text))),
        None => drop(annotations.remove(annotation)),
    }
}

fn annotations(object: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
}

/// Removes the object's map of annotations if the map is empty. The API server stores no empty
/// maps, so the conversion must not leave an empty map in an object without annotations.
fn drop_if_empty(object: &mut Map<String, Value>) {
    if annotations(object).is_some_and(|annotations| annotations.is_empty())
        && let Some(Value::Object(metadata)) = object.get_mut("metadata")
    {
        metadata.remove("annotations");
    }
}
