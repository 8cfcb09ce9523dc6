#!/bin/sh
# The first process of a user-mode Linux on the host's files: tests of cgroup v2 with the memory controller, on
# machines whose own kernel gives them none. test_cgroup2.py boots it; README.md says more.
# From the kernel's command line: WM_PYTHON (the host's Python with pytest), WM_REPOSITORY.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH="$WM_REPOSITORY/src" WHEELMILL_TEST_BACKEND=cgroup2 WHEELMILL_INSIDE_UML=1

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
group=/sys/fs/cgroup
cd "$WM_REPOSITORY" || exit 1
echo "uml kernel $(uname -r), controllers $(cat $group/cgroup.controllers)"

pytests() {
    "$WM_PYTHON" -m pytest -q -s --color=no -p no:cacheprovider --tb=short "$@" 2>&1
}

# 1. In the root group, which may hold processes beside its children.
pytests tests/integration/test_cgroups.py -k "probing or peak or gate or swept or blamed"
echo "uml status root: $?"

# 2. In a group with a limit and processes of its own, as a container or a delegated scope is: no process may stay
#    in it before its children can be limited.
echo +memory >$group/cgroup.subtree_control
mkdir $group/job
echo 1000M >$group/job/memory.max
(
    echo 0 >$group/job/cgroup.procs
    pytests tests/integration/test_cgroups.py tests/integration/test_cgroup2.py
    echo "uml status job: $?"
)
echo "uml left: $(find $group -name 'wheelmill-*[0-9]' | tr '\n' ' ')"

echo o >/proc/sysrq-trigger
sleep 10
