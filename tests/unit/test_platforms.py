"""What each platform has, by auditwheel's own table."""

import pytest

from wheelmill.platforms import oldest, platform_called


@pytest.mark.parametrize(
    ("tag", "versions", "beyond"),
    [
        ("manylinux_2_28_x86_64", {"GLIBC_2.28", "GLIBCXX_3.4.24", "CXXABI_1.3.11"}, ()),
        ("manylinux_2_28_x86_64", {"GLIBC_2.32", "GLIBC_2.29"}, ("GLIBC_2.29", "GLIBC_2.32")),
        ("manylinux_2_28_x86_64", {"GLIBCXX_3.4.25", "CXXABI_1.3.13"}, ("CXXABI_1.3.13", "GLIBCXX_3.4.25")),
        ("manylinux2014_x86_64", {"GLIBC_2.17"}, ()),
        ("manylinux1_x86_64", {"GLIBC_2.17"}, ("GLIBC_2.17",)),
        ("manylinux_2_29_x86_64", {"GLIBC_2.29"}, ()),
        ("manylinux_2_28_x86_64", {"libcudart.so.12", "FOO_9.9"}, ()),
        ("manylinux_2_35_x86_64", {"GLIBC_ABI_DT_RELR"}, ("GLIBC_ABI_DT_RELR",)),
        ("manylinux_2_36_x86_64", {"GLIBC_ABI_DT_RELR"}, ()),
    ],
)
def test_versions_beyond_a_platform(tag: str, versions: set[str], beyond: tuple[str, ...]) -> None:
    """Numbers are compared as numbers; versions of libraries that no policy speaks of are left alone."""
    platform = platform_called(tag)
    assert platform is not None
    assert platform.beyond(versions) == beyond


def test_the_oldest_of_several_counts() -> None:
    """A wheel of two platforms says that it runs on both."""
    found = oldest(["manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "any"])
    assert found is not None
    assert (found.tag, found.machine, found.glibc) == ("manylinux_2_24_x86_64", "x86_64", (2, 24))
    assert "libc.so.6" in found.libraries
    assert oldest(["any", "linux_x86_64", "win_amd64", "musllinux_1_1_x86_64", "manylinux_1_0_x86_64"]) is None
