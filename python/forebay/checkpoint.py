"""Groups of checkpoint files: a set of files is complete, or it is not there.

    from forebay.checkpoint import Checkpoints

    kept = Checkpoints("run", keep=2)
    with kept.begin(step) as new:
        with new.open("model") as file:
            file.write(state)
    step = kept.latest()

Checkpoint 7 is the directory NAME.7. Each rank writes its files there, and at the end a manifest
with their sizes and checksums, which takes its name by a rename. A checkpoint is complete when the
manifests of all ranks of one run are there and each file is as they say; so no rank needs to talk
to another one. Forebay is not needed, and neither is anything but the standard library.
"""

import contextlib
import json
import os
import re
import shutil
import stat
import uuid
import zlib

from ._files import open as _open, wait as _wait

_PIECE = 1 << 20
_FORM = 1


class IncompleteError(OSError):
    """A checkpoint that is not whole: a file or a manifest is missing, or has other bytes."""


def _run_of_environment():
    """What tells one start of a parallel job from the next one."""
    for names in (["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
                  ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"]):
        # torchrun without --rdzv-id says "none" at each start.
        if os.environ.get(names[0], "none") not in ("", "none"):
            return ".".join(os.environ.get(name, "0") for name in names)
    return None


def _checksum(file):
    total, size = 0, 0
    while piece := file.read(_PIECE):
        total, size = zlib.crc32(piece, total), size + len(piece)
    return total, size


def _finished(path, level):
    """What a manifest says of a file, once the file is at the level."""
    with _open(path, "rb") as file:
        crc, size = _checksum(file)
        if level:
            _wait(file, level)
    return {"bytes": size, "crc32": crc}


def _check(step, level):
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step is {step!r}, and has to be a whole number from 0 on")
    if level not in (None, "durable", "store"):
        raise ValueError(f"level is {level!r}, and has to be None, durable or store")


def _sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class New:
    """A checkpoint that is being written by one rank; `Checkpoints.begin` makes it."""

    def __init__(self, group, step, level):
        self._group, self.step, self._level = group, step, level
        self.path = group._folder(step)
        self._names, self._open_files, self._done = [], [], False
        # What other processes have finished, as the manifest has it.
        self._of_others = {}
        os.makedirs(self.path, exist_ok=True)
        # This rank's part is not there from now on, if the step was written before. Ranks that this
        # run has not left theirs in one with more of them, and none of this run replaces it.
        for name in os.listdir(self.path):
            match = group._MANIFEST.fullmatch(name)
            if match and (int(match[1]) == group.rank
                          or group.rank == 0 and int(match[1]) >= group.ranks):
                os.unlink(os.path.join(self.path, name))
        _sync_directory(self.path)

    def open(self, name, buffering=-1):
        """Opens a new file of the checkpoint for reading and writing, by its name in it.

        Names of ranks have to differ. One that is open at the end is closed then.
        """
        self._check(name)
        file = _open(os.path.join(self.path, name), "w+b", buffering)
        self._names.append(name)
        self._open_files.append(file)
        return file

    def add(self, name):
        """Takes in a file that something else has written to the directory `path`, by its name there.

        It has to be finished and closed.
        """
        self._check(name)
        place = os.path.join(self.path, name)
        if not stat.S_ISREG(os.lstat(place).st_mode):
            raise ValueError(f"{place!r} is no regular file")
        self._names.append(name)

    def _check(self, name):
        if self._done:
            raise ValueError("the checkpoint was committed, or given up")
        if not name or os.path.basename(name) != name or name in (".", "..") \
                or name.startswith("manifest."):
            raise ValueError(f"{name!r} is no name of a file in a checkpoint")
        if name in self._names:
            raise ValueError(f"{name!r} is in the checkpoint already")

    def _close_files(self):
        # All of them, whichever cannot write what is in its buffer. Such a checkpoint is given up.
        files, self._open_files, self._done = self._open_files, [], True
        with contextlib.ExitStack() as stack:
            for file in files:
                stack.callback(file.close)
        self._done = False

    def commit(self):
        """Waits until the files are at the level of `begin`, and then publishes the manifest."""
        if self._done:
            raise ValueError("the checkpoint was committed, or given up")
        self._close_files()
        files = dict(self._of_others)
        for name in self._names:
            files[name] = _finished(os.path.join(self.path, name), self._level)
        group = self._group
        manifest = {"form": _FORM, "run": group.run, "rank": group.rank, "ranks": group.ranks,
                    "files": files}
        final = os.path.join(self.path, f"manifest.{group.rank}.json")
        with _open(final + ".new", "wb") as file:
            file.write(json.dumps(manifest).encode())
            if self._level:
                _wait(file, self._level)
        os.rename(final + ".new", final)
        if self._level:
            _sync_directory(self.path)
            _sync_directory(group.directory)
        self._done = True
        # Older ones are dropped only for one that is as safe as the store.
        if self._level == "store" and group.rank == 0:
            group.prune()

    def give_up(self):
        """Leaves the checkpoint incomplete; a later one drops it."""
        self._close_files()
        self._done = True

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self._done:
            return
        if kind is None:
            self.commit()
        else:
            self.give_up()


class Checkpoints:
    """The checkpoints NAME.STEP in a directory.

    `keep` is how many complete ones stay (None: all), the latest first; beside them those whose step
    is a multiple of `keep_every`, or for which `keep_if(step)` is true. With several `ranks` each
    says its `rank`, and `run` is a text that all ranks of one start of the job have in common and an
    earlier start had not; Slurm gives one, and torchrun with --rdzv-id or --standalone.
    """

    _MANIFEST = re.compile(r"manifest\.(\d+)\.json(?:\.new)?")

    def __init__(self, directory, name="checkpoint", *, keep=None, keep_every=None, keep_if=None,
                 rank=0, ranks=1, run=None):
        if keep is not None and keep < 1:
            raise ValueError(f"keep is {keep}, and at least one checkpoint has to stay")
        if keep_every is not None and keep_every < 1:
            raise ValueError(f"keep_every is {keep_every}, and has to be 1 or more")
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} is not in 0 to {ranks - 1}")
        if not name or os.path.basename(name) != name:
            raise ValueError(f"{name!r} is no name of checkpoints")
        if run is None:
            run = _run_of_environment() if ranks > 1 else uuid.uuid4().hex
            if run is None:
                raise ValueError("with several ranks, say run=: a text that they have in common")
        self.directory, self.name = os.path.abspath(directory), name
        self.keep, self.keep_every, self.keep_if = keep, keep_every, keep_if
        self.rank, self.ranks, self.run = rank, ranks, run
        os.makedirs(self.directory, exist_ok=True)

    def _folder(self, step):
        return os.path.join(self.directory, f"{self.name}.{step}")

    def begin(self, step, level="store", *, replace=False):
        """A new checkpoint. At the end of a `with` it is committed, and given up after an error.

        One that is complete is `FileExistsError`, unless `replace` is true: from then on until the
        commit the step is not there. An incomplete one is written anew.

        With `level` None the end does not wait: the checkpoint survives the program and the node
        manager, and may be lost with the node, which is noticed. Nothing is dropped for it then,
        nor with "durable": `prune` does that, and waits for what stays.
        """
        _check(step, level)
        if not replace and self.is_complete(step):
            raise FileExistsError(17, f"checkpoint {step} is complete; say replace=True to write it "
                                  "anew", self._folder(step))
        return New(self, step, level)

    def _found(self):
        pattern = re.compile(re.escape(self.name) + r"\.(0|[1-9]\d*)")
        matches = (pattern.fullmatch(name) for name in os.listdir(self.directory))
        steps = sorted(int(match[1]) for match in matches if match)
        return [step for step in steps if os.path.isdir(self._folder(step))]

    def _files(self, step):
        """The files of all ranks, as their manifests have them; IncompleteError if one is missing."""
        folder = self._folder(step)

        def incomplete(why):
            return IncompleteError(2, f"checkpoint {step} is incomplete: {why}", folder)

        manifests = {}
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise incomplete("it is not there") from None
        for name in names:
            match = self._MANIFEST.fullmatch(name)
            if not match or name.endswith(".new"):
                continue
            try:
                with _open(os.path.join(folder, name), "rb") as file:
                    manifest = json.loads(file.read())
                form = manifest["form"]
                sizes = {
                    file: {"bytes": int(said["bytes"]), "crc32": int(said["crc32"])}
                    for file, said in dict(manifest["files"]).items()
                }
                entry = (manifest["run"], int(manifest["ranks"]), sizes)
            except (ValueError, KeyError, TypeError, FileNotFoundError):
                raise incomplete(f"{name} cannot be read") from None
            if form != _FORM:
                raise incomplete(f"{name} is of form {form}, and this version reads {_FORM}")
            manifests[int(match[1])] = entry
        if not manifests:
            raise incomplete("no rank has finished")
        if len({(run, ranks) for run, ranks, _ in manifests.values()}) > 1:
            raise incomplete("its ranks are of several runs")
        ranks = next(iter(manifests.values()))[1]
        missing = sorted(set(range(ranks)) - set(manifests))
        if missing:
            raise incomplete(f"ranks {missing[:8]} have not finished")
        files = {}
        for _, _, ones in manifests.values():
            for name, wanted in ones.items():
                if name in files:
                    raise incomplete(f"two ranks have written {name}")
                files[name] = wanted
        for name, wanted in files.items():
            try:
                size = os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                raise incomplete(f"{name} is not there") from None
            if size != wanted["bytes"]:
                raise incomplete(f"{name} has {size} bytes instead of {wanted['bytes']}")
        return files

    def is_complete(self, step):
        """Whether all manifests and files of a checkpoint are there, with their sizes."""
        try:
            self._files(step)
        except IncompleteError:
            return False
        return True

    def verify(self, step):
        """Reads all files; `IncompleteError` if one has other bytes than were written."""
        for name, wanted in self._files(step).items():
            try:
                with _open(os.path.join(self._folder(step), name), "rb") as file:
                    crc, size = _checksum(file)
            except FileNotFoundError:
                # Another process has dropped it meanwhile.
                raise IncompleteError(
                    2, f"checkpoint {step} is incomplete: {name} is not there", self._folder(step)
                ) from None
            if {"bytes": size, "crc32": crc} != wanted:
                raise IncompleteError(
                    5, f"checkpoint {step}: {name} has other bytes than were written",
                    self._folder(step),
                )

    def steps(self):
        """The steps of complete checkpoints, in ascending order."""
        return [step for step in self._found() if self.is_complete(step)]

    def latest(self, verify=False):
        """The step of the latest complete checkpoint, or None; with `verify` its bytes are read."""
        for step in reversed(self._found()):
            try:
                (self.verify if verify else self._files)(step)
            except IncompleteError:
                continue
            return step
        return None

    def names(self, step):
        """The names of the files of a complete checkpoint."""
        return sorted(self._files(step))

    def open(self, step, name, buffering=-1):
        """Opens a file of a complete checkpoint for reading."""
        if name not in self._files(step):
            raise FileNotFoundError(2, f"checkpoint {step} has no file {name!r}", self._folder(step))
        return _open(os.path.join(self._folder(step), name), "rb", buffering)

    def prune(self):
        """Drops what the rules do not keep, and incomplete ones before the latest complete one.

        What stays is waited for first, until it is on the store. Returns the steps that are gone.
        """
        if self.keep is None:
            return []
        complete = self.steps()
        if not complete:
            return []
        kept = complete[-self.keep:]
        older = [step for step in self._found() if step < complete[-1]]
        gone = [step for step in older if not self._stays(step, kept, complete)]
        if gone:
            for step in kept:
                self._await(step)
        for step in gone:
            self._drop(step)
        return gone

    def _await(self, step):
        """Waits until a complete checkpoint is on the store, as far as this node has written it."""
        folder = self._folder(step)
        # Those that are being written anew are not what stays.
        manifests = [
            name for name in os.listdir(folder)
            if self._MANIFEST.fullmatch(name) and not name.endswith(".new")
        ]
        for name in [*self._files(step), *manifests]:
            with _open(os.path.join(folder, name), "rb") as file:
                _wait(file, "store")
        _sync_directory(folder)
        _sync_directory(self.directory)

    def _stays(self, step, kept, complete):
        by_rule = step in complete and (
            (self.keep_every is not None and step % self.keep_every == 0)
            or (self.keep_if is not None and self.keep_if(step))
        )
        return step in kept or by_rule

    def _drop(self, step):
        folder = self._folder(step)
        # Without manifests it is incomplete, wherever a kill leaves the rest.
        for name in os.listdir(folder):
            if self._MANIFEST.fullmatch(name):
                os.unlink(os.path.join(folder, name))
        _sync_directory(folder)
        shutil.rmtree(folder)
