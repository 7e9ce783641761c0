"""`torch.save` and `torch.load` through Forebay, also to groups of checkpoint files.

    from forebay.checkpoint import Checkpoints
    from forebay.torch import load, save

    kept = Checkpoints("run", keep=2)
    with kept.begin(step) as new:
        save(model.state_dict(), "model", to=new)
    state = load("model", of=(kept, kept.latest()))
"""

import torch

from ._files import open as _open, wait as _wait


def save(obj, path, *, to=None, level=None, **options):
    """`torch.save` to a path, or to file `path` of a new checkpoint `to`.

    With a `level` it returns once the file is there; a checkpoint waits at its commit.
    """
    if to is not None and level is not None:
        raise ValueError("the level of a checkpoint is that of its begin")
    with (_open(path, "wb") if to is None else to.open(path)) as file:
        torch.save(obj, file, **options)
        if level is not None:
            _wait(file, level)


def load(path, *, of=None, **options):
    """`torch.load` of a path, or of a file of a complete checkpoint: `of=(checkpoints, step)`."""
    with (_open(path, "rb") if of is None else of[0].open(of[1], path)) as file:
        return torch.load(file, **options)
