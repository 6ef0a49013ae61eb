//! The blocks of `docs/cookbook.md`: the lines of each `sh` block, and what the `text` block behind it says that they print.

/// Lines that are run one by one, and what all of them together print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    pub lines: Vec<String>,
    /// Parts of a line of the output, in this order and with anything between them.
    pub prints: Vec<Vec<String>>,
}

/// Every recipe of a page, in its order.
pub fn recipes(page: &str) -> Vec<Recipe> {
    let mut recipes: Vec<Recipe> = Vec::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let (language, body) = block.split_once('\n').unwrap_or((block, ""));
        let lines = body.lines().map(str::to_owned);
        match (language, recipes.last_mut()) {
            ("sh", _) => recipes.push(Recipe {
                lines: lines.collect(),
                prints: Vec::new(),
            }),
            ("text", Some(recipe)) => {
                let parts = |line: String| line.split('…').map(str::to_owned).collect();
                recipe.prints.extend(lines.map(parts));
            }
            _ => {}
        }
    }
    recipes
}

/// Whether a line of the output has these parts.
pub fn printed(output: &str, parts: &[String]) -> bool {
    output.lines().any(|line| {
        let mut rest = Some(line);
        for part in parts {
            rest = rest.and_then(|rest| Some(rest.split_once(part.as_str())?.1));
        }
        rest.is_some()
    })
}
