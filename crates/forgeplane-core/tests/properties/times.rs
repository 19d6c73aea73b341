//! C5: times that other programs stumble over.

use forgeplane_core::Timestamp;
use forgeplane_core::id::RunId;
use proptest::prelude::*;

/// The last second that fits into 31 bits, and into 32.
const ENDS: [i64; 2] = [i32::MAX as i64, u32::MAX as i64];

/// Any time since the epoch, often near one of the ends, to the microsecond.
fn time() -> impl Strategy<Value = Timestamp> {
    let anywhere = 0..=Timestamp::MAX.as_microsecond();
    let near = (prop::sample::select(ENDS.to_vec()), -2_000_000_i64..2_000_000)
        .prop_map(|(second, off)| second * 1_000_000 + off);
    prop_oneof![anywhere, near].prop_map(|us| Timestamp::from_microsecond(us).unwrap())
}

proptest! {
    /// Ids are in the order of the milliseconds they were made in, as values and as text, and keep them.
    #[test]
    fn c5_ids_keep_the_order_of_their_times(one in time(), other in time(), random in any::<[[u8; 10]; 2]>()) {
        let (a, b) = (RunId::new(one, random[0]), RunId::new(other, random[1]));
        prop_assert_eq!(a.created_at().as_millisecond(), one.as_millisecond());
        prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        if one.as_millisecond() != other.as_millisecond() {
            prop_assert_eq!(a.cmp(&b), one.cmp(&other));
        }
    }

    /// A time is read as it was written.
    #[test]
    fn c5_times_are_read_as_they_were_written(time in time()) {
        let text = serde_json::to_string(&time).unwrap();
        prop_assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), time);
    }
}

/// A clock that shows a leap second is not refused: it is the second before.
#[test]
fn c5_a_leap_second_is_the_second_before_it() {
    let read = |text: &str| serde_json::from_str::<Timestamp>(text).unwrap();
    let leap = read("\"2016-12-31T23:59:60Z\"");
    assert_eq!(leap, read("\"2016-12-31T23:59:59Z\""));
    assert!(leap < read("\"2017-01-01T00:00:00Z\""));
}
