//! Enumerations whose values have names of their own.

/// An enumeration with the names of its values: every value, its name, the value of a name; in JSON and printed it is its name. It
/// can be copied and compared.
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* $visible:vis enum $type:ident { $($(#[$about_value:meta])* $value:ident = $name:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $visible enum $type {
            $($(#[$about_value])* $value),+
        }

        impl $type {
            /// Every value.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Every name.
            pub const NAMES: [&'static str; Self::ALL.len()] = [$($name),+];

            /// The name used in configuration and on D-Bus.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }

            /// The value of that name.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == text)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| serde::de::Error::unknown_variant(&text, &Self::NAMES))
            }
        }
    };
}
