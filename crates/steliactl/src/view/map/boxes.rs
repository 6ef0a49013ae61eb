//! Boxes with texts, and how they are put beside each other. Lengths are pixels, from the left and from the top.

use super::marks::columns;

/// A box, with what is in it.
#[derive(Debug, Default)]
pub(super) struct Shape {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
    /// Classes of the style sheet; without any the box itself is not drawn.
    pub class: String,
    /// The whole text that pointing at it shows; empty: none.
    pub title: String,
    pub labels: Vec<Label>,
    pub inside: Vec<Shape>,
}

#[derive(Debug)]
pub(super) struct Label {
    /// Where it begins, or its middle if it is centred.
    pub x: usize,
    /// Its base line.
    pub y: usize,
    pub size: usize,
    pub centred: bool,
    pub text: String,
}

/// Sizes of letters.
pub(super) const SMALL_TEXT_SIZE: usize = 11;
pub(super) const TEXT_SIZE: usize = 12;
pub(super) const LARGE_TEXT_SIZE: usize = 17;

/// How wide a text is at most: monospaced fonts have letters of 0.55 to 0.61 of their size.
pub(super) fn text_width(text: &str, size: usize) -> usize {
    (columns(text) * size * 5).div_ceil(8)
}

const PAD: usize = 6;
pub(super) const GAP: usize = 6;
pub(super) const CELL_HEIGHT: usize = 18;
/// The height of a line with a title or a key in it.
const LINE: usize = 18;

impl Shape {
    pub(super) fn new(class: impl Into<String>, title: String) -> Self {
        let class = class.into();
        Self {
            class,
            title,
            ..Self::default()
        }
    }

    pub(super) fn label(&mut self, x: usize, y: usize, size: usize, text: String) {
        self.labels.push(Label {
            x,
            y,
            size,
            centred: false,
            text,
        });
    }

    /// A small box round one text.
    pub(super) fn cell(class: String, title: String, (width, height): (usize, usize), text: String) -> Self {
        let mut shape = Self::new(class, title);
        (shape.width, shape.height) = (width, height);
        shape.label(width / 2, height - 5, SMALL_TEXT_SIZE, text);
        shape.labels.iter_mut().for_each(|label| label.centred = true);
        shape
    }

    /// Shifts it and all that is in it.
    pub(super) fn shift(&mut self, right: usize, down: usize) {
        (self.x, self.y) = (self.x + right, self.y + down);
        for label in &mut self.labels {
            (label.x, label.y) = (label.x + right, label.y + down);
        }
        for shape in &mut self.inside {
            shape.shift(right, down);
        }
    }

    pub(super) fn right(&self) -> usize {
        self.x + self.width
    }

    pub(super) fn bottom(&self) -> usize {
        self.y + self.height
    }

    /// A box round others, with its name above them.
    pub(super) fn around(class: &str, name: String, title: String, mut inside: Vec<Shape>) -> Self {
        let mut shape = Self::new(class, title);
        inside.iter_mut().for_each(|one| one.shift(PAD, LINE + 2));
        let right = inside.iter().map(Shape::right).max().unwrap_or(0);
        shape.width = right.max(PAD + text_width(&name, SMALL_TEXT_SIZE)) + PAD;
        shape.height = inside.iter().map(Shape::bottom).max().unwrap_or(LINE) + PAD;
        shape.inside = inside;
        shape.label(PAD, 14, SMALL_TEXT_SIZE, name);
        shape
    }
}

/// Arranges shapes that are at the origin in this many columns, row by row; returns the width and the height of all.
pub(super) fn grid(shapes: &mut [Shape], across: usize) -> (usize, usize) {
    let (mut y, mut right) = (0, 0);
    for row in shapes.chunks_mut(across.max(1)) {
        let (mut x, mut high) = (0, 0);
        for shape in row {
            shape.shift(x, y);
            x = shape.right() + GAP;
            high = high.max(shape.height);
        }
        (right, y) = (right.max(x), y + high + GAP);
    }
    (right.saturating_sub(GAP), y.saturating_sub(GAP))
}

/// Puts shapes of like sizes into as many columns as bring the whole nearest to a screen's 16:10, with few empty places.
pub(super) fn balance(shapes: &mut [Shape]) -> (usize, usize) {
    let wide = shapes.iter().map(|shape| shape.width + GAP).max().unwrap_or(1);
    let high = shapes.iter().map(|shape| shape.height + GAP).max().unwrap_or(1);
    let off = |across: &usize| {
        let down = shapes.len().div_ceil(*across);
        let (width, height) = (wide * across * 10, high * down * 16);
        // How many times, in thousandths, one is the other; as many times more as there are more places than shapes.
        width.max(height) * 1000 / width.min(height).max(1) * across * down
    };
    let across = (1..=shapes.len()).min_by_key(off).unwrap_or(1);
    grid(shapes, across)
}
