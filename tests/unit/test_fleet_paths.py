"""Laws of the paths that a command line of the conductor gets on another host."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.remote_process import Streams, suite_paths

ROOT, SUITE = "/home/me/suite", "/data/work/suite"
there, back = suite_paths(ROOT, SUITE), suite_paths(SUITE, ROOT)
parts = st.lists(st.from_regex(r"[a-z0-9_.][a-z0-9_.-]{0,8}", fullmatch=True), max_size=4)
inside = parts.map(lambda names: "/".join([ROOT, *names]))
outside = parts.map(lambda names: "/".join(["/usr/lib", *names]))


@given(inside)
def test_a_path_under_the_root_lies_under_the_suite_and_comes_back(path: str) -> None:
    assert there(path) == SUITE + path.removeprefix(ROOT)
    assert back(there(path)) == path


@given(outside)
def test_other_paths_stay(path: str) -> None:
    assert there(path) == path


@given(st.lists(st.one_of(inside, outside)), st.sampled_from([":", ",", " ", "\n", ";"]))
def test_every_element_of_a_list_is_mapped_by_itself(paths: list[str], separator: str) -> None:
    assert there(separator.join(paths)) == separator.join(map(there, paths))


@given(inside, st.sampled_from(["--data=", "NAME=", '{"a": "', "file://", "(", "@"]))
def test_what_stands_before_a_path_stays(path: str, before: str) -> None:
    expected = path if before.endswith("/") else there(path)
    assert there(before + path) == before + expected


@given(inside)
def test_a_suite_at_the_same_place_changes_nothing(path: str) -> None:
    assert suite_paths(ROOT, ROOT)(path) == path


@pytest.mark.parametrize("path", ["/else" + ROOT, ROOT + "-2/x", ROOT + "2", ROOT + ".old", "." + ROOT, "~" + ROOT])
def test_a_path_that_only_looks_like_one_under_the_root_stays(path: str) -> None:
    assert there(path) == (path if not path.startswith("~") else "~" + SUITE)


def test_characters_with_a_meaning_in_patterns_are_only_characters() -> None:
    mapped = suite_paths("/a+b/(c)", r"/d\1")
    assert mapped("/a+b/(c)/e:/aab/(c)") == r"/d\1/e:/aab/(c)"


def test_slashes_at_the_end_do_not_matter() -> None:
    assert suite_paths(ROOT + "/", SUITE + "/")(ROOT + "/x") == SUITE + "/x"


@pytest.mark.parametrize("root", ["", "/", "//"])
def test_the_whole_file_system_is_no_root(root: str) -> None:
    with pytest.raises(ValueError, match="folder of its own"):
        suite_paths(root, SUITE)


def test_streams_that_cannot_be_relayed_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "in").open("wb") as file, pytest.raises(ValueError, match=r"stream 0 .*PIPE, DEVNULL or None"):
        Streams.plan(file, None, None)
    with open("/dev/null", "wb") as device, pytest.raises(ValueError, match=r"stream 1 .*a regular file"):
        Streams.plan(subprocess.PIPE, device, None)
    with pytest.raises(ValueError, match="stream 1"):
        Streams.plan(None, subprocess.STDOUT, None)


def test_one_file_for_both_outputs_is_one_stream(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        both = Streams.plan(subprocess.DEVNULL, file, file)
        assert both.kinds == ["null", "pipe", "stdout"]
        both.close()


def test_an_agent_needs_neither_numpy_nor_torch() -> None:
    heavy = "import sys, scripts.agent; print([name for name in ('numpy', 'torch', 'scipy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
