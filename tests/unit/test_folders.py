import os

import pytest

from experiments.folders import FolderError, to_read, to_write


def test_a_folder_that_is_there_or_can_be_made_is_fine(tmp_path):
    assert to_write(tmp_path) == tmp_path
    assert to_write(tmp_path / "new" / "one") == tmp_path / "new" / "one"
    assert to_read(tmp_path) == tmp_path
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("check", [to_read, to_write])
@pytest.mark.parametrize("name", ["file", "file/below", "file/far/below"])
def test_a_file_is_no_folder(tmp_path, check, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"--results .*file.* is no folder"):
        check(tmp_path / name)


def test_a_file_where_records_belong_is_named(tmp_path):
    (tmp_path / "raw").write_text("")
    with pytest.raises(FolderError, match="raw is no folder"):
        to_write(tmp_path)


def test_records_are_not_read_from_nowhere_and_nothing_is_made(tmp_path):
    with pytest.raises(FolderError, match="there is no such folder; name one with records"):
        to_read(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_counts_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert str(to_write(type(tmp_path)("new/one"))) == "new/one"
    with pytest.raises(FolderError, match="is no folder"):
        to_write(type(tmp_path)("file/below"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_others_is_refused(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(FolderError, match="may not write"):
        to_write(tmp_path / "new")
