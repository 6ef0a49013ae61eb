//! A pod's UID in 16 bytes: there are hundreds of thousands of them.

use std::fmt;

/// The number of a UUID. kubelet's UIDs of static pods are the same without dashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub u128);

impl Uid {
    /// `None` where the text is not 32 hexadecimal digits, with or without dashes.
    pub fn parse(text: &str) -> Option<Self> {
        let mut number = 0u128;
        let mut digits = 0;
        for character in text.chars().filter(|character| *character != '-') {
            digits += 1;
            number = number << 4 | u128::from(character.to_digit(16)?);
        }
        (digits == 32).then_some(Self(number))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        write!(
            formatter,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            number >> 96,
            number >> 80 & 0xffff,
            number >> 64 & 0xffff,
            number >> 48 & 0xffff,
            number & 0xffff_ffff_ffff
        )
    }
}
