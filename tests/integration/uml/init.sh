#!/bin/sh
# The first process of a user-mode Linux on the host's files: tests of cgroup v2 with the memory controller, on
# machines whose own kernel gives them none. test_cgroup2.py boots it; README.md says more.
# From the kernel's command line: WM_PYTHON (the host's Python with pytest), WM_REPOSITORY.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH="$WM_REPOSITORY/src" WHEELMILL_TEST_BACKEND=cgroup2 WHEELMILL_INSIDE_UML=job

group=/sys/fs/cgroup

pytests() {
    "$WM_PYTHON" -m pytest -q -s --color=no -p no:cacheprovider --tb=short "$@" 2>&1
}

few="probing or only_the_gate or living_gate or kill_of_the_kernel"
case "$1" in
container)
    umount $group
    mount -t cgroup2 cgroup2 $group
    mkdir -p /run/systemd/system
    WHEELMILL_INSIDE_UML=container pytests tests/integration/test_cgroup*.py -k "$few or container"
    echo "uml status container: $?"
    exit
    ;;
user)
    WHEELMILL_INSIDE_UML=user pytests tests/integration/test_cgroup*.py -k "$few or users_own"
    echo "uml status user: $?"
    exit
    ;;
esac

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cd "$WM_REPOSITORY" || exit 1
echo "uml kernel $(uname -r), controllers $(cat $group/cgroup.controllers)"

# 1. In the root group, which may hold processes beside its children.
pytests tests/integration/test_cgroups.py -k "$few or swept or blamed"
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

# 3. In a container's cgroup namespace: our group is the mount's root, though systemd runs.
mkdir $group/pod
echo 1000M >$group/pod/memory.max
(
    echo 0 >$group/pod/cgroup.procs
    exec unshare --cgroup --mount "$0" container
)
rmdir /run/systemd/system

# 4. As a user who was given a group, as systemd's Delegate=yes does.
mkdir $group/user
chown -R 1000 $group/user
user="setpriv --reuid=1000 --regid=1000 --clear-groups"
# shellcheck disable=SC2016 - the inner shell's: setpriv itself may still read what the user may not
if $user sh -c '"$WM_PYTHON" -c "import wheelmill.cgroups, pytest"' 2>/dev/null; then
    (
        echo 0 >$group/user/cgroup.procs
        exec $user "$0" user
    )
else
    echo "uml skips user: another user than this cannot read $WM_PYTHON or $WM_REPOSITORY"
fi
echo "uml left: $(find $group -name 'wheelmill-*[0-9]' | tr '\n' ' ')"

echo o >/proc/sysrq-trigger
sleep 10
