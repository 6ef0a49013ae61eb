//! Types that are a string in JSON.

/// A type that is a string in JSON: what it displays, and what the given function parses.
#[macro_export]
macro_rules! json_string {
    ($type:ty, $parse:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize<'de>>::deserialize(deserializer)?;
                let parse = $parse;
                parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
