//! Enumerations whose values have names of their own.

/// An enumeration whose values have names: [`named!`](crate::named) implements it.
pub trait Named: Copy {
    /// The value's name.
    fn name(self) -> &'static str;

    /// The value of that name.
    fn parse(text: &str) -> Option<Self>;
}

/// The names of an enumeration: every value, its name, the value of a name; in JSON it is its name.
#[macro_export]
macro_rules! named {
    ($type:ident { $($value:ident = $name:literal),+ }) => {
        impl $type {
            /// Every value.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

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

        impl $crate::Named for $type {
            fn name(self) -> &'static str {
                Self::name(self)
            }

            fn parse(text: &str) -> Option<Self> {
                Self::parse(text)
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
                Self::parse(&text).ok_or_else(|| serde::de::Error::unknown_variant(&text, &[$($name),+]))
            }
        }
    };
}
