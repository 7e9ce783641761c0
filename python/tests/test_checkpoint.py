import json
import os
import pickle

import pytest
from conftest import BUFFERED

from forebay import checkpoint
from forebay.checkpoint import Checkpoints, IncompleteError


def write(group, step, level="store", names=("model", "optimizer"), replace=False):
    with group.begin(step, level, replace=replace) as new:
        for name in names:
            with new.open(name) as file:
                pickle.dump((step, name, list(range(1000))), file)


def test_the_latest_complete_one_is_found_and_read(folder):
    group = Checkpoints(folder)
    assert group.latest() is None and group.steps() == []
    for step in (2, 10, 9):
        write(group, step)
    assert group.steps() == [2, 9, 10] and Checkpoints(folder).latest(verify=True) == 10
    assert group.names(10) == ["model", "optimizer"]
    with group.open(10, "model") as file:
        assert pickle.load(file)[:2] == (10, "model")
    with pytest.raises(FileNotFoundError, match="no file"):
        group.open(10, "other")
    with pytest.raises(IncompleteError, match="not there"):
        group.open(11, "model")


def test_an_error_leaves_the_checkpoint_incomplete(folder):
    group = Checkpoints(folder)
    write(group, 1)
    with pytest.raises(ZeroDivisionError), group.begin(2) as new:
        new.open("model").write(b"x")
        1 / 0
    assert group.latest() == 1 and not group.is_complete(2)
    # A step that is written anew is not there until it is complete again.
    with pytest.raises(FileExistsError, match="replace=True"):
        group.begin(1)
    with group.begin(1, replace=True) as new:
        assert group.latest() is None
        new.open("model").write(b"y")
    assert group.latest() == 1 and group.names(1) == ["model"]


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest", "bytes"])
def test_damage_is_noticed_and_an_older_one_is_used(folder, damage):
    group = Checkpoints(folder)
    write(group, 1)
    write(group, 2)
    model = folder / "checkpoint.2" / "model"
    if damage == "cut":
        os.truncate(model, 100)
    elif damage == "gone":
        model.unlink()
    elif damage == "manifest":
        os.truncate(folder / "checkpoint.2" / "manifest.0.json", 20)
    else:
        content = bytearray(model.read_bytes())
        content[500] ^= 1
        model.write_bytes(content)
        assert group.latest() == 2
    assert group.latest(verify=True) == 1
    with pytest.raises(IncompleteError, match="checkpoint 2"):
        group.verify(2)


def test_what_is_no_checkpoint_is_left_alone(folder):
    group = Checkpoints(folder, keep=1)
    write(group, 1)
    (folder / "checkpoint.0").write_text("a file")
    (folder / "checkpoint.9").write_text("a file")
    assert group.latest() == 1 and group.steps() == [1]
    write(group, 2)
    assert sorted(os.listdir(folder)) == ["checkpoint.0", "checkpoint.2", "checkpoint.9"]
    with pytest.raises(IncompleteError):
        group.names(9)


@pytest.mark.parametrize("manifest", [
    {}, [], {"model": 7}, {"model": {"bytes": 5}}, {"model": {"bytes": "?", "crc32": 1}},
])
def test_a_manifest_of_other_entries_is_no_complete_one(folder, manifest):
    group = Checkpoints(folder)
    write(group, 1)
    write(group, 2)
    whole = {"form": 1, "run": "a", "rank": 0, "ranks": 1, "files": manifest}
    if manifest == {}:
        del whole["files"]
    (folder / "checkpoint.2" / "manifest.0.json").write_text(json.dumps(whole))
    assert group.latest() == (2 if manifest == [] else 1)


def test_a_checkpoint_that_is_dropped_while_it_is_read_is_not_the_latest(folder, monkeypatch):
    group = Checkpoints(folder)
    write(group, 1)
    write(group, 2)
    usual = group._files

    def dropped(step):
        files = usual(step)
        if step == 2:
            os.unlink(folder / "checkpoint.2" / "model")
        return files

    monkeypatch.setattr(group, "_files", dropped)
    assert group.latest(verify=True) == 1


def test_what_could_not_be_written_is_not_committed_later(folder, monkeypatch):
    group = Checkpoints(folder)
    new = group.begin(1)
    files = [new.open(name) for name in ("model", "optimizer")]
    for file in files:
        file.write(b"in a buffer of Python")

    def full(_):
        raise OSError(28, "full")

    monkeypatch.setattr(files[0].raw, "write", full, raising=False)
    with pytest.raises(OSError, match="full"):
        new.commit()
    assert all(file.closed for file in files)
    with pytest.raises(ValueError, match="given up"):
        new.commit()
    assert group.latest() is None


def test_runs_of_torchrun_without_an_id_are_not_one(folder, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(ValueError, match="run="):
        Checkpoints(folder, ranks=2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "night")
    assert Checkpoints(folder, ranks=2).run == "night.0"


def test_old_ones_are_dropped_by_rule(folder):
    group = Checkpoints(folder, keep=2, keep_every=4, keep_if=lambda step: step == 3)
    with pytest.raises(ZeroDivisionError), group.begin(5):
        1 / 0
    (folder / "checkpoint.notes").mkdir()
    for step in range(1, 10):
        if step != 5:
            write(group, step)
    assert group.steps() == [3, 4, 8, 9]
    assert sorted(os.listdir(folder)) == ["checkpoint." + n for n in ("3", "4", "8", "9", "notes")]


def test_nothing_is_dropped_for_one_that_may_be_lost(folder):
    group = Checkpoints(folder, keep=1)
    write(group, 1)
    write(group, 2, level=None)
    assert group.steps() == [1, 2]
    assert group.prune() == [1] and group.steps() == [2]


def test_a_checkpoint_is_there_once_all_ranks_of_a_run_are(folder):
    first = [Checkpoints(folder, rank=rank, ranks=3, run="a") for rank in range(3)]
    for group in first[:2]:
        write(group, 7, names=[f"part{group.rank}"])
    assert first[0].latest() is None
    with pytest.raises(IncompleteError, match=r"ranks \[2\]"):
        first[0].names(7)
    # A later start writes the step again: what it lacks is not taken from the first one.
    second = [Checkpoints(folder, rank=rank, ranks=3, run="b") for rank in range(3)]
    write(second[2], 7, names=["part2"])
    assert second[0].latest() is None
    for group in second[:2]:
        write(group, 7, names=[f"part{group.rank}"])
    assert Checkpoints(folder).names(7) == ["part0", "part1", "part2"]
    # Two ranks that write one file would replace each other's bytes.
    write(second[1], 7, names=["part0"], replace=True)
    assert second[0].latest() is None


def test_a_step_that_more_ranks_began_is_complete_with_fewer(folder):
    more = [Checkpoints(folder, rank=rank, ranks=3, run="a") for rank in range(3)]
    for group in more[1:]:
        write(group, 7, names=[f"part{group.rank}"])
    fewer = [Checkpoints(folder, rank=rank, ranks=2, run="b") for rank in range(2)]
    for group in reversed(fewer):
        write(group, 7, names=[f"part{group.rank}"])
    assert fewer[0].latest(verify=True) == 7 and fewer[0].names(7) == ["part0", "part1"]


def test_files_that_others_have_written_are_taken_in(folder):
    group = Checkpoints(folder)
    with group.begin(1) as new:
        with open(os.path.join(new.path, "field"), "wb") as file:
            file.write(b"by another library")
        new.add("field")
        with pytest.raises(FileNotFoundError):
            new.add("other")
        os.mkdir(os.path.join(new.path, "below"))
        os.symlink("field", os.path.join(new.path, "link"))
        for name in ("below", "link", "field", "../field", "manifest.0.json"):
            with pytest.raises(ValueError):
                new.add(name)
        with pytest.raises(ValueError, match="already"):
            new.open("field")
    assert group.names(1) == ["field"] and group.latest(verify=True) == 1
    assert group.open(1, "field").read() == b"by another library"
    with open(folder / "checkpoint.1" / "field", "r+b") as file:
        file.write(b"BY")
    assert group.latest(verify=True) is None


def test_bad_words_are_refused(folder, monkeypatch):
    for names in (["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"]):
        monkeypatch.delenv(names, raising=False)
    for words in [{"keep": 0}, {"keep_every": 0}, {"rank": 1}, {"ranks": 2}, {"name": "a/b"}]:
        with pytest.raises(ValueError):
            Checkpoints(folder, **words)
    group = Checkpoints(folder)
    for step in (-1, 1.5, True, "1"):
        with pytest.raises(ValueError):
            group.begin(step)
    new = group.begin(1)
    for name in ("", "..", "a/b", "manifest.0.json"):
        with pytest.raises(ValueError):
            new.open(name)
    new.open("a")
    with pytest.raises(ValueError, match="already"):
        new.open("a")
    new.give_up()
    with pytest.raises(ValueError, match="given up"):
        new.commit()


def killed_after(count, folder):
    """Goes on with checkpoints in a child, which ends before its next change of the disk."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = count

    def counted(function):
        def call(*words, **options):
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)
            return function(*words, **options)
        return call

    try:
        for name in ("unlink", "rename", "rmdir", "makedirs"):
            setattr(os, name, counted(getattr(os, name)))
        for name in ("_open", "_sync_directory", "_wait"):
            setattr(checkpoint, name, counted(getattr(checkpoint, name)))
        group = Checkpoints(folder, keep=1)
        for step in range(group.latest() + 1, 4):
            write(group, step)
        os._exit(0)
    finally:
        os._exit(1)


def test_a_kill_at_any_step_leaves_a_complete_checkpoint(folder):
    kills, seen = 0, set()
    for count in range(0, 1000, 2 if BUFFERED else 4):
        site = folder / str(count)
        write(Checkpoints(site), 1)
        code = killed_after(count, site)
        if kills == 0 and code == 0:
            pytest.fail("no kill has hit")
        seen.add(Checkpoints(site).latest(verify=True))
        if code == 0:
            break
        assert code == 9
        kills += 1
        # The next start goes on from there, and tidies up.
        assert killed_after(10**6, site) == 0
        assert Checkpoints(site).steps()[-1] == 3
    assert kills > 10 and seen == {1, 2, 3}, (kills, seen)
    assert os.listdir(site) == ["checkpoint.3"]
