"""Files and folders are written whole or not at all, whatever stops the writer."""

import os
import subprocess
import sys

import pytest

from headtree._files import atomic, older_format, write_text


def folder(path, text="new"):
    path.mkdir()
    (path / "inner").mkdir()
    (path / "inner" / "file").write_text(text)


def stopped(path, error):
    """Write half of a folder or file, then fail."""
    with atomic(path) as draft:
        folder(draft) if path.name == "a" else draft.write_text("new")
        raise error


def names(path):
    return sorted(item.name for item in path.iterdir())


@pytest.mark.parametrize("inside", [False, True], ids=["beside", "in a folder of drafts"])
def test_files_and_folders_appear_when_they_are_complete(tmp_path, inside):
    drafts = tmp_path / "drafts" if inside else None
    for text in ("first", "second"):
        with atomic(tmp_path / "made" / "a", drafts=drafts) as draft:
            folder(draft, text)
            assert draft.parent == (drafts or tmp_path / "made")
        assert (tmp_path / "made" / "a" / "inner" / "file").read_text() == text
        write_text(tmp_path / "made" / "b.txt", f"{text}\n", drafts=drafts)
        assert (tmp_path / "made" / "b.txt").read_bytes() == f"{text}\n".encode()
    assert names(tmp_path / "made") == ["a", "b.txt"]
    assert not inside or names(drafts) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_error_leaves_what_was_there(tmp_path, error):
    folder(tmp_path / "a", "old")
    (tmp_path / "b").write_text("old")
    for name in ("a", "b"):
        with pytest.raises(type(error)):
            stopped(tmp_path / name, error)
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a" / "inner" / "file").read_text() == (tmp_path / "b").read_text() == "old"


def test_a_refused_move_brings_the_old_folder_back(tmp_path, monkeypatch):
    folder(tmp_path / "a", "old")
    replace = os.replace

    def refusing(source, target):
        if ".partial-" in str(source):
            raise PermissionError(13, "Permission denied")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    with pytest.raises(PermissionError), atomic(tmp_path / "a") as draft:
        folder(draft)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a" / "inner" / "file").read_text() == "old"


def test_a_file_never_replaces_a_folder(tmp_path):
    folder(tmp_path / "a", "old")
    with pytest.raises(OSError, match=r"."):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a" / "inner" / "file").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_leftovers_of_killed_writers_are_removed_and_those_of_running_ones_are_not(tmp_path):
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom headtree._files import atomic\n"
        "with atomic(Path(sys.argv[1])) as draft:\n    draft.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a[1]")], check=False)
    assert len(names(tmp_path)) == 1
    own = tmp_path / f".a[1].partial-{os.getpid()}-abcdefgh"
    other = tmp_path / ".b.partial-999999999-abcdefgh"
    own.write_text("")
    other.write_text("")
    write_text(tmp_path / "a[1]", "whole")
    assert names(tmp_path) == sorted([own.name, other.name, "a[1]"])


def test_a_folder_moved_aside_by_a_killed_writer_comes_back(tmp_path):
    folder(tmp_path / ".a.old-999999999-abcdefgh", "old")
    with pytest.raises(KeyboardInterrupt):
        stopped(tmp_path / "a", KeyboardInterrupt())
    assert (tmp_path / "a" / "inner" / "file").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_formats():
    assert "older format (x/1); run again" in older_format("p", "x/1", "x/2")
    for found in ("x/2", "x/3", "y/1", None, "x", "x/one"):
        assert older_format("p", found, "x/2") is None
