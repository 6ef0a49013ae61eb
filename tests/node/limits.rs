//! The limits kubelet set on the container hold for what was moved out of its cgroup.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::support::*;

/// Beside the VM's runner a shell that is moved to float with it, and does what files in the container's /tmp ask for.
pub fn vm_with_shell(name: &str, options: &[&str], qemu: &str) -> Pod {
    let accel = Accel::of_node();
    let start = accel.qemu().join(" ");
    let script = format!(
        "[ ! -d /mnt/before ] || fallocate -l 4M /mnt/before/pages
         stelia-runner run --qmp /run/qmp -- {start} -smp 2 {qemu} &
         while :; do
           [ -e /tmp/y.sh ] && mv /tmp/y.sh /tmp/now && {{ sh /tmp/now > /tmp/out 2>&1; echo $? > /tmp/rc; }}
           sleep 0.2
         done"
    );
    // The devices and limits that containerd and runc tell systemd.
    let options = [&["--runtime", "runc", "--cpus", "2"], accel.device(), options].concat();
    Pod::start(name, &options, &["sh", "-c", &script]).running()
}

pub fn in_float(pod: &Pod, script: &str) -> String {
    begin_in_float(pod, script);
    wait_until("the script's end", || {
        let text = exec(pod, "[ -e /tmp/rc ] && cat /tmp/out && echo END");
        text.contains("END").then_some(text)
    })
}

fn begin_in_float(pod: &Pod, script: &str) {
    let quoted = script.replace('\'', "'\\''");
    exec(
        pod,
        &format!("rm -f /tmp/out /tmp/rc; printf '%s' '{quoted}' > /tmp/y; mv /tmp/y /tmp/y.sh"),
    );
}

fn exec(pod: &Pod, command: &str) -> String {
    utf8(&pod.try_exec(&["sh", "-c", command]).stdout)
}

/// A device the pod was not given cannot be opened; one that it was given can.
pub fn assert_devices_are_closed(pod: &Pod) {
    let open =
        "mknod /dev/mymem c 1 1; mknod /dev/mynull c 1 3; head -c1 /dev/mymem; echo x > /dev/mynull && echo null-ok";
    assert_says(&in_float(pod, open), &["Operation not permitted", "null-ok"]);
}

/// As files of memory limits have it.
pub fn mib(count: u64) -> String {
    (count << 20).to_string()
}

#[test]
fn memory_pids_and_devices_of_the_container_bind_what_floats() {
    on_node(|| {
        // As with kubelet's singleProcessOOMKill.
        let options = ["--memory", "400M", "--pids", "200", "--unified", "memory.oom.group=0"];
        let pod = vm_with_shell("limited", &options, "-m 64");
        assert_eq!(pod.scope_file("memory.max"), mib(400));
        assert_eq!(pod.scope_file("pids.max"), "200");
        assert_eq!(pod.scope_file("cpu.weight"), pod.file("cpu.weight"));
        assert_eq!(read(format!("{SLICE}/cpu.weight")), pod.scope_file("cpu.weight"));
        assert_isolated(&pod, 2);

        assert_devices_are_closed(&pod);

        // An allocation beyond the limit is killed; the VM is not.
        let killed = || -> u64 { number(&field(&pod.scope_file("memory.events"), "oom_kill ")) };
        let before = killed();
        let text = in_float(&pod, "tail /dev/zero; echo ended");
        assert!(text.contains("Killed") || text.contains("ended"), "{text}");
        assert!(killed() > before);
        assert_isolated(&pod, 2);

        // A resize in place arrives too.
        pod.resize("--memory", "500M");
        reconcile();
        assert_eq!(pod.scope_file("memory.max"), mib(500));
        // And a restart of the daemon, or of systemd's configuration, undoes none of it.
        restart("steliad");
        run("systemctl daemon-reload");
        assert_eq!(pod.scope_file("memory.max"), mib(500));
        let usage = &describe()["usage"][&pod.uid];
        let (memory, cpu) = (usage["memory_bytes"].as_u64(), usage["cpu_usec"].as_u64());
        assert!(memory > Some(1 << 20) && cpu > Some(0), "{usage}");
    });
    // With the last instance the slice weighs what every slice weighs.
    wait_until("the slice's weight", || read(format!("{SLICE}/cpu.weight")) == "100");
}

#[test]
fn a_busy_shared_pool_does_not_starve_what_floats() {
    on_node(|| {
        let pod = vm_with_shell("fed", &[], "-m 64");
        for n in 0..16 {
            let unit = format!("--unit=hungry-{n}");
            run(&["systemd-run", "--quiet", &unit, "sh", "-c", "while :; do :; done"]);
        }
        let used = |cgroup: &str| -> u64 { number(&field(&read(format!("{cgroup}/cpu.stat")), "usage_usec ")) };
        let float = pod.float().display().to_string();
        // One busy thread in float beside 16 on the same shared CPUs.
        in_float(
            &pod,
            "timeout 120 sh -c \"while :; do :; done\" > /dev/null 2>&1 & echo started",
        );
        let idle = used(&float);
        wait_until("it runs", || used(&float) > idle + 500_000);
        let hungry = |n| used(&format!("{CGROUP}/system.slice/hungry-{n}.service"));
        let all = || (used(&float), (0..16).map(hungry).sum::<u64>());
        // Where threads come and go the kernel's shares of groups take a while to settle (kernel/sched/fair.c, calc_group_shares).
        let mut windows = (0..6).map(|_| {
            let before = all();
            sleep(Duration::from_secs(8));
            let after = all();
            let (own, average) = (after.0 - before.0, (after.1 - before.1) / 16);
            let (own_ms, average_ms) = (own / 1000, average / 1000);
            println!("  in 8 s the thread in float ran {own_ms} ms, each of the 16 others {average_ms} ms");
            own > average
        });
        let fed = windows.any(|fed| fed);
        output("systemctl stop hungry-*");
        assert!(fed, "it never got more than the average");
    });
}

#[test]
fn huge_pages_stay_within_the_limit_and_on_the_pods_numa_nodes() {
    let pools =
        [0, 1].map(|node| format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"));
    let give_back = || {
        run("umount /run/huge");
        pools.iter().for_each(|pool| keep_huge_pages(pool, 0));
    };
    on_node_undoing(give_back, || {
        pools.iter().for_each(|pool| keep_huge_pages(pool, 64));
        // Two pages are taken before the container registers, by a process of it; QEMU takes its own afterwards.
        fs::create_dir_all("/run/huge").expect("/run/huge");
        run("mount -t hugetlbfs -o pagesize=2M none /run/huge");
        fs::create_dir_all("/run/huge/before").expect("/run/huge/before");
        let options = ["--mems", "0", "--hugepages", "2MB=96M", "--mount", "/run/huge:/mnt"];
        let pod = vm_with_shell("huge", &options, "-m 64 -mem-path /mnt -mem-prealloc");
        let threads = assert_isolated(&pod, 2);
        assert_eq!(pod.scope_file("hugetlb.2MB.max"), mib(96));
        assert_eq!(pod.scope_file("hugetlb.2MB.current"), mib(64));
        assert_eq!(pod.scope_file("hugetlb.2MB.rsvd.max"), pod.file("hugetlb.2MB.rsvd.max"));
        assert_eq!(pod.scope_file("hugetlb.2MB.rsvd.max"), mib(96));
        // QEMU's memory is reserved: 32 MiB are left, and the pool has more than any of these asks for.
        let reserve = |mib: u32| {
            let program = format!(
                "import mmap, os; f = os.open(\"/mnt/{mib}\", os.O_RDWR | os.O_CREAT); os.ftruncate(f, {mib} << 20); \
                 mmap.mmap(f, {mib} << 20); print(\"reserved\")"
            );
            in_float(&pod, &format!("python3 -c '{program}' 2>&1"))
        };
        let (more, less) = (reserve(40), reserve(24));
        assert_says(&more, &["Cannot allocate memory"]);
        assert_says(&less, &["reserved"]);
        let by_node = field(&pod.scope_file("hugetlb.2MB.numa_stat"), "total=");
        assert_eq!(by_node, format!("{0} N0={0} N1=0", mib(64)));
        assert_eq!(pod.file("hugetlb.2MB.current"), mib(4));
        let free = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages";
        assert_eq!(read(free), "64", "pages of the other node are in use");
        // QEMU's own pages, too, came from the pod's node after the move: its memory nodes moved along.
        assert_eq!(field(&status(threads.vcpus[0].tid), "Mems_allowed_list:"), "0");
    });
}

/// A whole disk of the node, as `io.max` names it.
fn disk() -> String {
    let mut disks = names_in("/sys/block");
    disks.retain(|name| !["ram", "zram", "sr", "fd"].iter().any(|kind| name.starts_with(kind)));
    disks.sort();
    read(format!("/sys/block/{}/dev", disks.last().expect("a disk")))
}

#[test]
fn an_allocation_beyond_the_limit_ends_the_whole_vm_where_kubelet_has_it_so() {
    on_node(|| {
        // kubelet's default: the OOM killer takes all of the container.
        let pod = vm_with_shell("whole", &["--memory", "400M"], "-m 64");
        assert_eq!(pod.scope_file("memory.oom.group"), "1");
        assert_isolated(&pod, 2);
        begin_in_float(&pod, "tail /dev/zero");
        pod.wait_released();
        assert!(!pod.scope().exists());
    });
}

#[test]
fn what_the_runtime_wrote_of_memory_and_devices_is_on_the_scope_and_follows_at_once() {
    on_node(|| {
        let device = disk();
        let unified = [
            "memory.min=16777216".to_owned(),
            "memory.low=33554432".to_owned(),
            "memory.high=1073741824".to_owned(),
            "io.weight=default 250".to_owned(),
            format!("io.max={device} rbps=104857600 wiops=5000"),
        ];
        let unified: Vec<&str> = unified.iter().flat_map(|text| ["--unified", text]).collect();
        let pod = vm_with_shell("carried", &[&["--memory", "600M"], &unified[..]].concat(), "-m 64");
        assert_eq!(pod.scope_file("memory.min"), mib(16));
        assert_eq!(pod.scope_file("memory.low"), mib(32));
        assert_eq!(pod.scope_file("memory.high"), mib(1024));
        let max = pod.scope_file("io.max");
        assert_says(&max, &[&device, "rbps=104857600", "wiops=5000"]);
        for file in [
            "io.max",
            "io.weight",
            "memory.swap.max",
            "cpu.weight",
            "memory.oom.group",
        ] {
            assert_eq!(pod.scope_file(file), pod.file(file), "{file}");
        }
        // Below the slice as much is protected as on it. What the OOM killer takes does not end the scope.
        let protected = |file: &str| read(format!("{SLICE}/{file}"));
        wait_until("the slice's protection", || {
            let both = (protected("memory.min"), protected("memory.low"));
            both == (mib(16), mib(32))
        });
        let unit = pod.unit();
        let policy = property("OOMPolicy", &unit);
        assert!(["", "continue"].contains(&policy.trim()), "{policy}");
        // The kernel has exclusive CPUs to itself: no quota.
        assert_eq!(pod.scope_file("cpu.max"), "max 100000");

        // Nobody asks for an audit: the kernel tells of the write.
        let write = |file: &str, text: &str| put(pod.origin().join(file), text);
        write("memory.low", "67108864");
        write("io.max", &format!("{device} rbps=max wiops=4000"));
        wait_until("a change in place", || {
            let lows = [pod.scope_file("memory.low"), protected("memory.low")];
            pod.scope_file("io.max") == pod.file("io.max") && lows == [mib(64), mib(64)]
        });
        assert!(pod.scope_file("io.max").contains("rbps=max"));
        write("io.max", &format!("{device} wiops=max"));
        wait_until("no limit of devices", || pod.scope_file("io.max").is_empty());
        // What somebody sets on the scope is taken back as well.
        run(&["systemctl", "set-property", "--runtime", &unit, "CPUQuota=50%"]);
        wait_until("no quota", || pod.scope_file("cpu.max") == "max 100000");
        assert_isolated(&pod, 2);
    });
    wait_until("nothing is protected", || read(format!("{SLICE}/memory.min")) == "0");
}

#[test]
fn float_can_be_limited_by_configuration() {
    on_node(|| {
        let pod = Pod::vm("throttled", 2);
        let max = || read(pod.float().join("cpu.max"));
        configure("float-cpu-max = \"50000 100000\"\n");
        assert_eq!(max(), "50000 100000");
        unconfigure();
        assert_eq!(max(), "max 100000");
        assert_isolated(&pod, 2);
    });
}
