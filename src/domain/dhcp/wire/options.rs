//! Writing and reading the options of a DHCP message (RFC 2132, 3396). An area is a part of the
//! message that contains options: the options field, and the fields `file` and `sname` if they are
//! used for options. Invariants:
//!
//! * An option that goes beyond the end of its area makes the whole message unreadable. The length
//!   of this option is wrong, so its value may cover other options.
//! * If an option occurs more than once, its values from all areas are concatenated.

pub const SUBNET_MASK: u8 = 1;
pub const ROUTER: u8 = 3;
pub const NAME_SERVER: u8 = 6;
pub const HOST_NAME: u8 = 12;
pub const REQUESTED_ADDRESS: u8 = 50;
pub const LEASE_TIME: u8 = 51;
pub const OVERLOAD: u8 = 52;
pub const MESSAGE_TYPE: u8 = 53;
pub const SERVER_ID: u8 = 54;
pub const PARAMETERS: u8 = 55;
pub const LARGEST_MESSAGE: u8 = 57;
pub const T1: u8 = 58;
pub const T2: u8 = 59;
pub const VENDOR_CLASS: u8 = 60;
pub const CLIENT_ID: u8 = 61;
const PAD: u8 = 0;
pub const END: u8 = 255;

/// Adds an option to a message that is being written. A value of more than 255 octets is cut. After
/// the last option, the message needs the octet [`END`].
pub fn put(message: &mut Vec<u8>, code: u8, value: &[u8]) {
    let value = &value[..value.len().min(255)];
    message.push(code);
    message.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
    message.extend(value);
}

/// Options of a received message. The areas are the parts of the message that contain options, in
/// the order in which they must be read.
#[derive(Clone, Copy, Debug)]
pub struct OptionReader<'a> {
    areas: [&'a [u8]; 3],
}

impl<'a> OptionReader<'a> {
    /// Finds the areas of a message: the options field, and the fields `file` and `sname`. These
    /// two fields contain options only if option 52 in the options field says so. `None`: an option
    /// goes beyond the end of its area.
    pub fn new(field: &'a [u8], file: &'a [u8], sname: &'a [u8]) -> Option<Self> {
        let sound = |areas: [&'a [u8]; 3]| Some(Self { areas }).filter(Self::is_sound);
        let reader = sound([field, &[], &[]])?;
        match reader.get(OVERLOAD).and_then(|value| value.first().copied()) {
            Some(1) => sound([field, file, &[]]),
            Some(2) => sound([field, sname, &[]]),
            Some(3) => sound([field, file, sname]),
            _ => Some(reader),
        }
    }

    fn is_sound(&self) -> bool {
        self.areas.iter().all(|area| OptionEntries(area).all(|entry| entry.is_some()))
    }

    /// Value of the option `code`. `None`: the message does not have this option.
    pub fn get(&self, code: u8) -> Option<Vec<u8>> {
        let entries = self.areas.iter().flat_map(|area| OptionEntries(area)).flatten();
        let mut parts = entries.filter(|(found, _)| *found == code).map(|(_, value)| value);
        let mut value = parts.next()?.to_vec();
        parts.for_each(|part| value.extend(part));
        Some(value)
    }

    /// Value of the option `code`, which must have `N` octets. `None`: the option is missing, or
    /// has another length.
    pub fn fixed<const N: usize>(&self, code: u8) -> Option<[u8; N]> {
        self.get(code)?.try_into().ok()
    }
}

/// Iterator over the options in one area. An item is the code and the value of an option. The item
/// is `None` if the option goes beyond the end of the area. This item is the last one.
struct OptionEntries<'a>(&'a [u8]);

impl<'a> Iterator for OptionEntries<'a> {
    type Item = Option<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (code, rest) = self.0.split_first()?;
            self.0 = match *code {
                PAD => rest,
                END => &[],
                code => {
                    let whole = rest
                        .split_first()
                        .and_then(|(length, rest)| rest.split_at_checked(usize::from(*length)));
                    let (value, rest) = whole.unzip();
                    self.0 = rest.unwrap_or_default();
                    return Some(value.map(|value| (code, value)));
                }
            };
        }
    }
}
