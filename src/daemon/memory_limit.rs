//! How much memory this process may use: the least of the limits of its control groups (version 2 and 1) and of what
//! the machine has. Knows nothing of what uses it.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The limit in bytes; `None` where it cannot be determined.
#[must_use]
pub fn limit_bytes() -> Option<u64> {
    limit_under(Path::new("/"))
}

/// The same, with `proc` and `sys` under `root`.
fn limit_under(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| group_limit(root, line)).min();
    let machine = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let line = machine.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let of_machine = kib.map(|kib| kib.saturating_mul(1024));
    of_groups.into_iter().chain(of_machine).min()
}

/// The least limit of a group, a line `number:controllers:path`, and the groups above it.
fn group_limit(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (mounts, files): (&[&str], &[&str]) = if controllers.is_empty() {
        (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|name| name == "memory") {
        (&["sys/fs/cgroup/memory"], &["memory.limit_in_bytes"])
    } else {
        return None;
    };
    // Seen from inside a container, the path may lead out of what is mounted: then the mount itself is the group.
    let inside: PathBuf =
        Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let limits = mounts.iter().flat_map(|mount| {
        let groups = inside.ancestors().map(move |group| root.join(mount).join(group));
        groups.flat_map(|group| files.iter().filter_map(move |file| limit_in(&group.join(file))))
    });
    limits.min()
}

/// What a file of a control group holds; `max` is no limit.
fn limit_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok().filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "MemTotal:       16384 kB\nMemFree:           12 kB\n";
    const MIB: u64 = 1 << 20;

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        limit_under(root.path())
    }

    #[test]
    fn the_least_limit_of_groups_and_machine_counts() {
        let machine = ("proc/meminfo", MACHINE);
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[machine]), Some(16 * MIB));
        let service = ("proc/self/cgroup", "0::/system.slice/evergraph.service\n");
        let own = "sys/fs/cgroup/system.slice/evergraph.service/memory.max";
        assert_eq!(limit(&[machine, service, (own, "max\n")]), Some(16 * MIB));
        assert_eq!(limit(&[machine, service, (own, "8388608\n")]), Some(8 * MIB));
        assert_eq!(limit(&[machine, service, (own, "999999999999\n")]), Some(16 * MIB), "more than there is");
        let high = "sys/fs/cgroup/system.slice/evergraph.service/memory.high";
        assert_eq!(limit(&[machine, service, (own, "8388608\n"), (high, "4194304\n")]), Some(4 * MIB));
        let above = ("sys/fs/cgroup/system.slice/memory.max", "2097152\n");
        assert_eq!(limit(&[machine, service, (own, "8388608\n"), above]), Some(2 * MIB), "the slice binds");
    }

    #[test]
    fn a_container_sees_its_group_at_the_root_of_the_mount() {
        let machine = ("proc/meminfo", MACHINE);
        let mounted = ("sys/fs/cgroup/memory.max", "4194304\n");
        for path in ["0::/\n", "0::/../..\n", "0::/kubepods/pod7/c1\n"] {
            assert_eq!(limit(&[machine, ("proc/self/cgroup", path), mounted]), Some(4 * MIB), "{path}");
        }
    }

    #[test]
    fn version_1_is_read_as_well() {
        let groups = ("proc/self/cgroup", "9:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n0::/\n");
        let own = "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes";
        let machine = ("proc/meminfo", MACHINE);
        assert_eq!(limit(&[machine, groups, (own, "1048576\n")]), Some(MIB));
        assert_eq!(limit(&[machine, groups, (own, "9223372036854771712\n")]), Some(16 * MIB), "no limit");
    }
}
