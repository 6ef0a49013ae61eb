//! `memory.numa_stat` and `hugetlb.<size>.numa_stat` (`Documentation/admin-guide/cgroup-v2.rst`): bytes by NUMA node.
//!
//! A cgroup's numbers hold those of the cgroups below it. Pages stay charged to the cgroup that first touched them: what a
//! process touched before it was moved is in the numbers of where it was then.

use std::collections::BTreeMap;

/// Bytes by NUMA node.
pub type ByNode = BTreeMap<u32, u64>;

/// A counter of a `memory.numa_stat`, such as `anon`; `None` where it is not in the text or does not read as one.
pub fn counter(text: &str, name: &str) -> Option<ByNode> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    by_node(line)
}

/// The pages of a `hugetlb.<size>.numa_stat`; `None` where the text does not read as one.
pub fn huge_pages(text: &str) -> Option<ByNode> {
    let (total, nodes) = text.lines().next()?.strip_prefix("total=")?.split_once(' ')?;
    total.parse::<u64>().ok()?;
    by_node(nodes)
}

/// `N0=8589934592 N1=0`
fn by_node(text: &str) -> Option<ByNode> {
    let one = |word: &str| {
        let (node, bytes) = word.strip_prefix('N')?.split_once('=')?;
        Some((node.parse().ok()?, bytes.parse().ok()?))
    };
    text.split_whitespace().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VM's scope on Linux 6.12 with two NUMA nodes.
    const MEMORY: &str = include_str!("../../../../tests/data/numa-stat/memory.numa_stat");
    /// What the article prints of a VM with huge pages.
    const HUGE: &str = include_str!("../../../../tests/data/numa-stat/hugetlb.2MB.numa_stat");

    #[test]
    fn the_kernels_counters_are_read_by_node() {
        let nodes = |text| counter(MEMORY, text).unwrap();
        assert_eq!(nodes("anon").keys().copied().collect::<Vec<_>>(), [0, 1]);
        // The name is the whole word: "file" is neither "file_mapped" nor "inactive_file".
        assert_ne!(nodes("file"), nodes("file_mapped"));
        assert_eq!(counter(MEMORY, "fil"), None);
        assert_eq!(counter(MEMORY, "hugetlb"), None);
        assert_eq!(huge_pages(HUGE), Some(ByNode::from([(0, 8_589_934_592), (1, 0)])));
    }

    #[test]
    fn what_is_no_such_text_is_none() {
        for text in [
            "",
            "total=",
            "total=x N0=1",
            "total=1 N0",
            "total=1 0=1",
            "N0=1",
            "total=1 N0=-1",
        ] {
            assert_eq!(huge_pages(text), None, "{text}");
        }
        assert_eq!(counter("anon N0=1 N1=many\n", "anon"), None);
        // cgroup v1 has another form.
        assert_eq!(counter("anon=374 N0=374\n", "anon"), None);
    }
}
