"""Checkpoints of `torch.distributed.checkpoint` as groups: complete on all ranks, or not there.

    import torch.distributed.checkpoint as dcp
    from forebay.checkpoint import Checkpoints
    from forebay.dcp import Reader, Writer

    kept = Checkpoints("run", keep=2)
    dcp.save(state, storage_writer=Writer(kept, step))
    dcp.load(state, storage_reader=Reader(kept, kept.latest()))

Ranks talk to each other in a save; so one manifest, of the coordinating rank, has the files of all
of them. It is written last, when each rank has said that its files are at the level.
"""

import os

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.futures import Future

from .checkpoint import _check, _finished, _sync_directory


class _Files(dict):
    """The files of a rank, as a manifest has them; the last of its results."""


class Writer(FileSystemWriter):
    """Saves one step of a group, on all ranks: `level` and `replace` are those of `begin`.

    `options` are those of FileSystemWriter. The group is one of a single rank: torch says which
    ranks there are. A step that is complete is an error on all ranks, unless `replace` is true.
    """

    def __init__(self, group, step, level="store", *, replace=False, **options):
        if group.ranks != 1:
            raise ValueError("say no ranks to Checkpoints: torch.distributed has them")
        # Before torch makes the directory.
        _check(step, level)
        # Files are waited for, and need no sync of their own.
        super().__init__(group._folder(step), **{"sync_files": False, **options})
        self._group, self._step, self._level, self._replace = group, step, level, replace
        self._new = None

    def reset(self, checkpoint_id=None):
        _refuse(checkpoint_id)
        super().reset()
        self._new = None

    # torch gives the keywords only to a method that calls them `kwargs`.
    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if not kwargs.get("use_collectives", True):
            raise ValueError("a group is complete on all ranks, which needs use_collectives=True")
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_global_plan(self, plans):
        # Of the coordinating rank alone, before any rank writes.
        self._new = self._group.begin(self._step, self._level, replace=self._replace)
        return super().prepare_global_plan(plans)

    def write_data(self, plan, planner):
        results = super().write_data(plan, planner).wait()
        if len(results) != len(plan.items):
            # torch prints the errors of further threads, and goes on.
            raise OSError(5, "a thread of the writer could not write its items", str(self.path))
        names = sorted({result.storage_data.relative_path for result in results})
        files = _Files(
            (name, _finished(os.path.join(self.path, name), self._level)) for name in names
        )
        if self._level:
            _sync_directory(self.path)
        done = Future()
        done.set_result([*results, files])
        return done

    def finish(self, metadata, results):
        for *_, files in results:
            self._new._of_others.update(files)
        super().finish(metadata, [own for *own, _ in results])
        self._new.add(".metadata")
        self._new.commit()


class Reader(FileSystemReader):
    """Loads a complete checkpoint of a group; one that is not there is `IncompleteError`."""

    def __init__(self, group, step, **options):
        group._files(step)
        super().__init__(group._folder(step), **options)

    def reset(self, checkpoint_id=None):
        _refuse(checkpoint_id)
        super().reset()


def _refuse(checkpoint_id):
    if checkpoint_id is not None:
        raise ValueError("the step says which checkpoint it is: give no checkpoint_id")
