"""Needs torch; the other tests do not."""

import multiprocessing
import os
import signal
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.utils.data import DataLoader, Dataset

from forebay.checkpoint import Checkpoints, IncompleteError
from forebay.dcp import Reader, Writer
from forebay.torch import load, save

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint"),
]


def test_torch_saves_to_groups(folder):
    group = Checkpoints(folder, keep=1)
    with group.begin(1) as new:
        save({"weight": torch.arange(10.0)}, "model", to=new)
    assert load("model", of=(group, 1))["weight"].sum() == 45
    save(torch.ones(3), folder / "one", level="store")
    assert load(folder / "one").sum() == 3


@pytest.mark.parametrize("options", [{}, {"mmap": True}, {"weights_only": False}])
def test_torch_itself_saves_and_loads(folder, options):
    state = {"weight": torch.arange(1 << 18, dtype=torch.float64), "step": 7}
    torch.save(state, folder / "model")
    got = torch.load(folder / "model", **options)
    assert got["step"] == 7 and torch.equal(got["weight"], state["weight"])
    # What is mapped privately is the program's own.
    got["weight"][0] = 5.0
    assert torch.load(folder / "model")["weight"][0] == 0


class Files(Dataset):
    def __init__(self, folder, count):
        self.folder, self.count = folder, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.load(self.folder / f"{index}.pt")


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_of_a_loader_read_what_was_just_written(folder, way):
    for index in range(20):
        torch.save(torch.full((1000,), float(index)), folder / f"{index}.pt")
    loader = DataLoader(Files(folder, 20), batch_size=5, num_workers=2, multiprocessing_context=way)
    for _ in range(2):
        assert [batch[:, 999].tolist() for batch in loader] == [
            [float(index) for index in range(first, first + 5)] for first in range(0, 20, 5)
        ]


def state_of(step):
    return {"model": {"weight": torch.full((1000,), float(step))}, "step": step}


def loaded(group, step):
    state = state_of(0)
    dcp.load(state, storage_reader=Reader(group, step))
    return state["model"]["weight"].unique().tolist(), state["step"]


def test_one_process_saves_steps_that_are_complete_or_not_there(folder):
    group = Checkpoints(folder, keep=2)
    for step in (1, 2, 3):
        dcp.save(state_of(step), storage_writer=Writer(group, step, thread_count=2))
    assert group.steps() == [2, 3] and group.latest(verify=True) == 3
    assert ".metadata" in group.names(3) and len(group.names(3)) > 1
    assert loaded(group, 3) == ([3.0], 3)
    with pytest.raises(IncompleteError, match="checkpoint 1"):
        Reader(group, 1)
    os.unlink(folder / "checkpoint.3" / "__0_0.distcp")
    assert group.latest() == 2 and loaded(group, 2) == ([2.0], 2)


def test_a_complete_step_is_replaced_only_if_that_is_said(folder):
    group = Checkpoints(folder)
    dcp.save(state_of(1), storage_writer=Writer(group, 1))
    with pytest.raises(dcp.api.CheckpointException, match="replace=True"):
        dcp.save(state_of(2), storage_writer=Writer(group, 1))
    assert loaded(group, 1) == ([1.0], 1)
    dcp.save(state_of(2), storage_writer=Writer(group, 1, None, replace=True))
    assert loaded(group, 1) == ([2.0], 2)


def test_what_a_group_cannot_do_is_refused(folder):
    group = Checkpoints(folder)
    with pytest.raises(ValueError, match="no ranks"):
        Writer(Checkpoints(folder, ranks=2, run="a"), 1)
    for words in ((-1,), (True,), (1, "moon")):
        with pytest.raises(ValueError):
            Writer(group, *words)
    with pytest.raises(ValueError, match="no checkpoint_id"):
        dcp.save(state_of(1), checkpoint_id=folder / "x", storage_writer=Writer(group, 1))
    with pytest.raises(ValueError, match="use_collectives"):
        dcp.save(state_of(1), storage_writer=Writer(group, 1), use_collectives=False)
    assert group.steps() == []


def test_a_thread_that_cannot_write_makes_no_checkpoint(folder, monkeypatch):
    group = Checkpoints(folder)
    writer = Writer(group, 1)
    usual = dcp.FileSystemWriter.write_data

    def lost(self, plan, planner):
        done = torch.futures.Future()
        done.set_result(usual(self, plan, planner).wait()[:-1])
        return done

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", lost)
    with pytest.raises(dcp.api.CheckpointException, match="could not write its items"):
        dcp.save(state_of(1), storage_writer=writer)
    assert group.latest() is None


class Dying(Writer):
    """Its rank is killed at a point of the save."""

    def __init__(self, *words, point):
        super().__init__(*words)
        self.point = point

    def at(self, point):
        if self.point == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_data(self, plan, planner):
        self.at("before it writes")
        done = super().write_data(plan, planner)
        self.at("after it has written")
        return done

    def finish(self, metadata, results):
        self._new.commit = lambda: self.at("before the manifest")
        super().finish(metadata, results)


def rank_of(rank, ranks, meeting, folder, point, way):
    """What a rank does: step 1 is saved, and step 2 until a rank dies."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    group = Checkpoints(folder, keep=1)

    def state(step):
        return {**state_of(step), f"own {rank}": torch.full((1000,), float(rank + step))}

    first = (group.latest() or 0) + 1
    for step in (first, first + 1):
        die = point if step == 2 and rank == (0 if point == "before the manifest" else 1) else None
        writer = Dying(group, step, point=die) if die else Writer(group, step)
        if way is None:
            # Plans that are kept from one save to the next name nothing of a step.
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            dcp.save(state(step), storage_writer=writer, planner=planner)
        else:
            kept = state(step)
            saved = dcp.async_save(kept, storage_writer=writer, async_checkpointer_type=way)
            # What is saved is what was there at the call.
            kept["model"]["weight"].zero_()
            saved.result()
        # The coordinator drops old ones in its commit, which all have waited for.
        assert group.steps() == [step]
        got = {**state_of(0), f"own {rank}": torch.zeros(1000)}
        dcp.load(got, storage_reader=Reader(group, step))
        assert got[f"own {rank}"].unique().tolist() == [rank + step]
        assert got["model"]["weight"].unique().tolist() == [step]
    dist.destroy_process_group()


def run_ranks(folder, point=None, way=None, ranks=2):
    """Exit codes of the ranks; those that another one's death leaves waiting are ended, too."""
    context = multiprocessing.get_context("fork" if way is None else "spawn")
    with tempfile.TemporaryDirectory() as meeting:
        words = (ranks, os.path.join(meeting, "ranks"), folder, point, way)
        running = [context.Process(target=rank_of, args=(rank, *words)) for rank in range(ranks)]
        for one in running:
            one.start()
        if point is not None:
            dies = running[0 if point == "before the manifest" else 1]
            dies.join()
        for one in running:
            one.join(120)
            if one.is_alive():
                one.kill()
                one.join()
        return [one.exitcode for one in running]


@pytest.mark.parametrize(
    "point", ["before it writes", "after it has written", "before the manifest"]
)
def test_a_rank_that_is_killed_leaves_the_step_before(folder, point):
    codes = run_ranks(folder, point)
    assert codes[0 if point == "before the manifest" else 1] == -signal.SIGKILL and 0 not in codes
    group = Checkpoints(folder)
    assert group.latest(verify=True) == 1 and loaded(group, 1) == ([1.0], 1)
    # The next start writes step 2 anew, and tidies up.
    assert run_ranks(folder) == [0, 0]
    assert group.steps() == [3] and os.listdir(folder) == ["checkpoint.3"]
    assert loaded(group, 3) == ([3.0], 3)


@pytest.mark.parametrize("way", [AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS])
def test_ranks_save_beside_their_work(folder, way):
    assert run_ranks(folder, way=way) == [0, 0]
    group = Checkpoints(folder)
    assert group.latest(verify=True) == 2 and loaded(group, 2) == ([2.0], 2)
