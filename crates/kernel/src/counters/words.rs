//! Lines, words and decimal numbers of a text of the kernel's.

use super::ParseError;

/// The lines, without their line feeds.
///
/// # Errors
/// The last one has no line feed.
#[inline]
pub(super) fn lines(text: &[u8]) -> Result<impl Iterator<Item = &[u8]>, ParseError> {
    let lines = match text {
        [] => text,
        [lines @ .., b'\n'] => lines,
        _ => return Err(ParseError::Cut),
    };
    Ok(lines.split(|byte| *byte == b'\n'))
}

/// Limit of the digits that fit 64 bits whatever they are.
const MAX_SAFE_DIGITS: usize = 19;

/// What is left of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words<'a>(pub(super) &'a [u8]);

impl<'a> Words<'a> {
    /// Without the blanks before the next word.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        let blanks = self.0.iter().take_while(|byte| is_blank(**byte)).count();
        &self.0[blanks..]
    }

    /// The next word.
    #[inline]
    pub(super) fn word(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest();
        let length = rest.iter().take_while(|byte| !is_blank(**byte)).count();
        let (word, after) = rest.split_at(length);
        self.0 = after;
        (!word.is_empty()).then_some(word)
    }

    /// The next word, if it is a number of 64 bits; if it is not, it stays the next.
    #[inline]
    pub(super) fn number(&mut self) -> Option<u64> {
        let rest = self.rest();
        let mut value: u64 = 0;
        let mut length = 0;
        for byte in rest {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                if is_blank(*byte) {
                    break;
                }
                return None;
            }
            // A number with at most this many digits fits.
            value = if length < MAX_SAFE_DIGITS {
                value * 10 + u64::from(digit)
            } else {
                value.checked_mul(10)?.checked_add(u64::from(digit))?
            };
            length += 1;
        }
        self.0 = &rest[length..];
        (length > 0).then_some(value)
    }

    /// Skips the next word if it is 0 in a column of ten places, as the kernel prints it: most words of such a table are.
    #[inline]
    pub(super) fn zero(&mut self) -> bool {
        const ZERO: &[u8; 12] = b"          0 ";
        let is_zero = self.0.first_chunk() == Some(ZERO);
        if is_zero {
            self.0 = &self.0[ZERO.len() - 1..];
        }
        is_zero
    }

    /// The next word but `passed` ones, if it is a number.
    #[inline]
    pub(super) fn number_after(&mut self, passed: usize) -> Option<u64> {
        for _ in 0..passed {
            self.number()?;
        }
        self.number()
    }
}

#[inline]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}
