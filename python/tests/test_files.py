import asyncio
import copy
import errno
import io
import itertools
import os
import pickle
import random
import resource
import subprocess
import sys
import time

import pytest
from conftest import BUFFERED

import forebay

numpy = pytest.importorskip("numpy")


def test_the_kind_of_the_run_is_what_is_asked_for(folder):
    with forebay.session() as session:
        assert session.is_active == BUFFERED
        with session.open(folder / "file", "wb") as file:
            assert forebay.is_buffered(file) == BUFFERED
    if not BUFFERED:
        with pytest.raises(forebay.NotRunning, match="forebay run"):
            forebay.session(require=True)


def test_arrays_are_written_and_read_without_a_copy(folder):
    wanted = numpy.random.default_rng(5).random((300, 1000))
    wanted.flags.writeable = False
    with forebay.open(folder / "array", "w+b", buffering=0) as file:
        assert file.write(wanted) == wanted.nbytes == file.size() == file.tell()
        got = numpy.zeros_like(wanted)
        file.seek(0)
        assert file.readinto(got) == got.nbytes
        assert (got == wanted).all()
        assert file.readinto_at(got[1], 8 * 1000 * 7) == 8000 and file.tell() == got.nbytes
        assert (got[1] == wanted[7]).all()
        with pytest.raises((BufferError, ValueError)):
            file.write(wanted[:, ::2])
        with pytest.raises((BufferError, ValueError)):
            file.readinto(wanted)
    assert (numpy.fromfile(folder / "array") == wanted.ravel()).all()


@pytest.mark.parametrize("mode", ["r", "r+", "w", "w+", "x", "x+", "a", "a+"])
@pytest.mark.parametrize("there", [False, True])
def test_each_mode_does_what_that_of_the_builtin_does(folder, mode, there):
    def of(opener, path):
        if there:
            path.write_bytes(b"0123456789")
        seen = []
        try:
            with opener(path, mode + "b") as file:
                seen += [type(file), file.readable(), file.writable(), file.tell()]
                for act in (lambda: file.write(b"abc"), lambda: file.seek(2),
                            lambda: file.read(3), file.tell, lambda: file.seek(-1, 2),
                            lambda: file.write(b"de"), lambda: file.truncate(6)):
                    try:
                        seen.append(act())
                    except io.UnsupportedOperation:
                        seen.append("unsupported")
        except OSError as error:
            seen.append((type(error), error.errno))
        return seen, path.read_bytes() if path.exists() else None

    ours, usual = of(forebay.open, folder / "ours"), of(open, folder / "usual")
    assert ours == usual


def test_text_lines_and_encodings(folder):
    with forebay.open(folder / "text", "w", encoding="utf-8") as file:
        file.writelines(f"line {number} é\n" for number in range(1000))
        forebay.wait(file)
    assert sum(1 for _ in forebay.open(folder / "text", encoding="utf-8")) == 1000
    assert (folder / "text").read_bytes().startswith("line 0 é\n".encode())


def test_errors_are_of_the_family_of_os_error(folder):
    with pytest.raises(FileNotFoundError) as caught:
        forebay.open(folder / "none")
    assert caught.value.errno == errno.ENOENT and caught.value.filename == folder / "none"
    assert str(caught.value).count("none") == 1, str(caught.value)
    with pytest.raises(IsADirectoryError):
        forebay.open(folder, "rb")
    with pytest.raises(IsADirectoryError):
        forebay.open(folder, "wb")
    for words in [("x", "q"), ("x", "rbt"), ("x", "r", 0)]:
        with pytest.raises((ValueError, FileNotFoundError)):
            forebay.open(folder / words[0], *words[1:])
    with pytest.raises(ValueError, match="null byte"):
        forebay.open(f"{folder}/file\0.tmp", "w")
    assert not os.listdir(folder)
    session = forebay.session()
    session.close()
    with pytest.raises(forebay.HandleClosed):
        session.open(folder / "file", "wb")


@pytest.mark.parametrize("buffering", [-1, 0, 100])
def test_the_end_of_a_session_closes_its_files_with_all_that_was_written(folder, buffering):
    with forebay.session() as session:
        text = session.open(folder / "text", "w")
        text.write("in a buffer of Python")
        raw = session.open(folder / "raw", "wb", buffering)
        raw.write(b"bytes")
    assert text.closed and raw.closed
    with pytest.raises(ValueError, match="closed file"):
        raw.write(b"x")
    assert (folder / "text").read_text() == "in a buffer of Python"
    assert (folder / "raw").read_bytes() == b"bytes"
    session.close()


def test_all_files_of_a_session_are_closed_when_one_of_them_fails(folder, monkeypatch):
    session = forebay.session()
    files = [session.open(folder / str(number), "wb") for number in range(3)]
    for number, file in enumerate(files):
        file.write(b"%d" % number)

    def full(_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files[1].raw, "write", full, raising=False)
    with pytest.raises(OSError, match="full"):
        session.close()
    assert all(file.closed for file in files)
    assert (folder / "0").read_bytes() == b"0" and (folder / "2").read_bytes() == b"2"
    with pytest.raises(forebay.HandleClosed):
        session.flush()


@pytest.mark.parametrize("opener", ["forebay.open", "forebay.session().open"])
def test_files_that_are_open_at_the_exit_have_all_that_was_written(folder, opener):
    program = f"""if True:
        import atexit, sys, forebay
        atexit.register(lambda: text.write(", and at the exit"))
        text, numbers = {opener}(sys.argv[1], "w"), {opener}(sys.argv[2], "wb")
        text.write("in a buffer of Python")
        numbers.write(b"1234")
    """
    paths = [folder / "text", folder / "numbers"]
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program, *paths],
        stderr=subprocess.PIPE, text=True, check=True,
    )
    written = [path.read_text() for path in paths]
    assert written == ["in a buffer of Python, and at the exit", "1234"]
    assert not done.stderr


def test_modes_are_those_that_the_builtin_takes(folder):
    def of(opener, path, mode):
        try:
            with opener(path, mode) as file:
                return type(file), file.mode, file.readable(), file.writable()
        except ValueError:
            return ValueError

    for count in range(4):
        for letters in itertools.product("rwab+t", repeat=count):
            mode = "".join(letters)
            for name in ("ours", "usual"):
                (folder / name).touch()
            ours, usual = of(forebay.open, folder / "ours", mode), of(open, folder / "usual", mode)
            assert ours == usual, mode


def test_random_calls_do_what_those_of_the_builtin_do(folder):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    for turn in range(60):
        mode = dice.choice(["r+b", "w+b", "a+b", "rb", "wb", "ab"])
        buffering = dice.choice([-1, 0, 64])
        paths = [folder / f"ours{turn}", folder / f"usual{turn}"]
        start = dice.randbytes(dice.randrange(500))
        for path in paths:
            path.write_bytes(start)
        files = [forebay.open(paths[0], mode, buffering), open(paths[1], mode, buffering)]
        for _ in range(40):
            number, some = dice.randrange(600), dice.randbytes(dice.randrange(200))
            words = dice.choice([
                ("write", some), ("read", number), ("read",), ("readinto",),
                ("seek", number), ("seek", -number, 2), ("seek", number - 300, 1), ("tell",),
                ("truncate",), ("truncate", number), ("flush",), ("readline",),
            ])

            def act(file):
                buffer = bytearray(number)
                given = [buffer] if words[0] == "readinto" else words[1:]
                try:
                    return getattr(file, words[0])(*given), buffer
                except (OSError, ValueError) as error:
                    return type(error)

            ours, usual = act(files[0]), act(files[1])
            assert ours == usual, (words, mode, buffering)
        for file in files:
            file.close()
        assert paths[0].read_bytes() == paths[1].read_bytes(), (mode, buffering)


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_children_go_on_where_the_file_is(folder, mode):
    (folder / "file").write_text("")
    with forebay.open(folder / "file", mode) as file:
        file.write("first\n")
        file.flush()
        subprocess.run(["echo", "of a child"], stdout=file, check=True)
        file.write("last\n")
    assert (folder / "file").read_text() == "first\nof a child\nlast\n"
    with forebay.open(folder / "file", "rb", 0) as file:
        assert file.read(6) == b"first\n"
        rest = subprocess.run(["cat"], stdin=file, stdout=subprocess.PIPE, check=True).stdout
        assert rest == b"of a child\nlast\n" and file.read() == b""


def test_what_is_too_large_for_one_call_is_written_and_read(folder, monkeypatch):
    monkeypatch.setattr(forebay._files, "_ONE_CALL", 10)
    for mode in ("w+b", "a+b"):
        with forebay.open(folder / "file", mode, 0) as file:
            assert file.write(b"0123456789") == 10 and file.write(b"abcdefghijk") == 11
            assert file.tell() == file.seek(0, io.SEEK_END)
            file.seek(-20, io.SEEK_END)
            got = bytearray(30)
            assert file.readinto(got) == 20 and got[:20] == b"123456789abcdefghijk"
            assert file.tell() == file.size()


@pytest.mark.parametrize("act", ["readable", "writable", "seekable", "truncate", "size"])
def test_a_closed_file_and_one_for_reading_refuse(folder, act):
    (folder / "file").write_bytes(b"123")
    file = forebay.open(folder / "file", "rb", 0)
    with pytest.raises(io.UnsupportedOperation):
        file.truncate(1)
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        getattr(file, act)()


def test_flush_and_wait_make_a_file_safe(folder):
    with forebay.open(folder / "file", "wb") as file:
        file.write(b"in a buffer of Python")
        assert not forebay.is_safe(file)
        forebay.flush(file)
        forebay.wait(file, timeout=30)
        assert forebay.is_safe(file)
        assert (folder / "file").stat().st_size == 21
        with pytest.raises(ValueError, match="durable"):
            forebay.wait(file, "perhaps")


def test_files_of_other_openers_are_known(folder):
    with open(folder / "file", "wb") as file:
        file.write(b"by the builtin")
        forebay.wait(file, timeout=30)
        assert forebay.is_safe(file)
        assert forebay.is_buffered(file) == BUFFERED
        file.write(b"!")
        assert not forebay.is_safe(file)


def test_the_descriptor_of_a_closed_file_is_not_used(folder):
    file = open(folder / "file", "wb", 0)
    forebay.flush(file)
    file.close()
    with open(folder / "other", "wb", 0), pytest.raises(ValueError, match="closed file"):
        forebay.is_safe(file)


def test_a_time_out_says_what_was_waited_for(folder, buffered):
    with forebay.open(folder / "file", "wb", 0) as file:
        found = []
        while not found:
            file.write(bytes(1 << 20))
            try:
                forebay.wait(file, timeout=0.0001)
            except TimeoutError as error:
                found.append(error)
        assert found[0].filename == folder / "file" and "within 0.0001 s" in str(found[0])


@pytest.mark.parametrize("timeout", [float("nan"), -1, -0.001, float("-inf")])
def test_a_time_out_that_never_comes_is_refused(folder, timeout):
    with forebay.open(folder / "file", "wb", 0) as file, forebay.session() as session:
        file.write(b"x")
        waits = [
            lambda: forebay.wait(file, timeout=timeout),
            lambda: session.wait(timeout=timeout),
            lambda: asyncio.run(forebay.wait_async(file, timeout=timeout)),
            lambda: asyncio.run(session.wait_async(timeout=timeout)),
        ]
        for wait in waits:
            with pytest.raises(ValueError, match="0 or more seconds"):
                wait()
        forebay.wait(file, timeout=float("inf"))


@pytest.mark.parametrize("call", [forebay.flush, forebay.wait])
def test_errors_of_flushes_name_the_file(call):
    with open(os.devnull, "wb") as file, pytest.raises(OSError) as caught:
        call(file)
    assert caught.value.filename == os.devnull
    assert str(caught.value).count(os.devnull) == 1, str(caught.value)


@pytest.mark.parametrize("call", [forebay.flush, forebay.wait, forebay.is_safe])
def test_a_path_is_no_open_file(folder, call):
    with pytest.raises(TypeError, match="no open file: give a file object"):
        call(str(folder / "path"))


def test_other_tasks_run_while_one_waits(folder):
    async def work():
        with forebay.open(folder / "file", "wb", 0) as file:
            file.write(bytes(8 << 20))
            waits = asyncio.ensure_future(forebay.wait_async(file, timeout=60))
            turns = 0
            while not waits.done():
                turns += 1
                await asyncio.sleep(0)
            await waits
            assert turns > 1 and forebay.is_safe(file)
            # Each look of a task finds what is safe by then, however late it is.
            await forebay.wait_async(file, timeout=0)

    asyncio.run(work())


def test_all_files_are_waited_for(folder, buffered):
    with forebay.session(require=True) as session:
        with session.open(folder / "file", "wb") as file:
            file.write(bytes(1 << 20))
        session.flush()
        session.wait(timeout=60)
        tiers = forebay.placement(forebay.open(folder / "file", "rb"))
        assert sum(part[1] for part in tiers) == 1 << 20 and not any(part[3] for part in tiers)


def test_pins_and_prefetch(folder, buffered):
    with forebay.open(folder / "file", "w+b", 0) as file:
        file.write(bytes(1 << 20))
        with forebay.pin(file):
            assert {part[2] for part in forebay.placement(file)} == {0}
        assert forebay.unpin(file) == 0
        forebay.prefetch(file)
        forebay.prefetch(file, [(0, 4096), (65536, 4096)])
        with pytest.raises(ValueError, match="64"):
            forebay.prefetch(file, [(0, 1)] * 65)
        with pytest.raises(OSError) as caught:
            forebay.pin(file, tier=9)
        assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("act", [
    lambda file: file.write(b"beyond the limit"),
    lambda file: file.write_at(b"beyond the limit", 5000),
    lambda file: file.truncate(5000),
    lambda file: file.seek(-1),
    lambda file: file.readinto_at(bytearray(1), -1),
    lambda file: forebay.pin(file, -1, 5),
    lambda file: forebay.unpin(file, -1, 5),
    lambda file: forebay.prefetch(file, [(0, -1)]),
    lambda file: forebay.placement(file, -1, 5),
])
def test_errors_have_a_number_and_name_the_file(folder, act):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    with forebay.open(folder / "file", "w+b", 0) as file:
        file.write(bytes(4096))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, usual[1]))
        try:
            with pytest.raises(OSError) as caught:
                act(file)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert caught.value.errno and caught.value.filename == folder / "file"


def test_a_tier_is_a_number(folder):
    with forebay.open(folder / "file", "w+b", 0) as file, pytest.raises(TypeError, match="integer"):
        forebay.pin(file, 0, 0, "ram")


def test_pins_say_what_they_need():
    if BUFFERED:
        pytest.skip("is for plain runs")
    with forebay.open(__file__, "rb") as file, pytest.raises(forebay.NotRunning):
        forebay.pin(file)


def test_numbers_that_do_not_fit_are_refused_and_not_cut_off(folder):
    with forebay.open(folder / "file", "w+b", buffering=0) as file:
        file.write(b"0123456789")
        for far in (2**64 + 5, 2**63, -(2**63) - 1):
            for act in (lambda: file.write_at(b"lost", far),
                        lambda: file.readinto_at(bytearray(4), far),
                        lambda: forebay.pin(file, far, 1), lambda: forebay.unpin(file, far, 1),
                        lambda: forebay.prefetch(file, [(far, 1)]),
                        lambda: forebay.placement(file, far)):
                with pytest.raises(OverflowError, match=str(far)):
                    act()
        with pytest.raises(OverflowError):
            forebay.pin(file, 0, 1, 2**32)
        with pytest.raises(TypeError):
            file.write_at(b"lost", 2.0)
        assert file.write_at(b"X", numpy.uint32(3)) == 1
    assert (folder / "file").read_bytes() == b"012X456789"


def test_files_and_sessions_are_not_copied(folder):
    with forebay.session() as session, session.open(folder / "file", "w+b", buffering=0) as file:
        for each in (file, session):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot copy or pickle"):
                    make(each)
        assert file.write(b"still open") == 10


def test_many_waits_at_once_end_in_their_time_and_leave_threads_to_other_tasks():
    # A library that never has it there, and takes the time that it is given.
    looked = []

    def never(limit):
        looked.append(limit)
        time.sleep(limit / 1000)
        raise TimeoutError(errno.ETIMEDOUT, "not yet")

    async def main():
        waits = [forebay._files._sliced_async(never, 0.2) for _ in range(200)]
        return await asyncio.gather(*waits, return_exceptions=True)

    ended = asyncio.run(main())
    assert [type(each) for each in ended] == [TimeoutError] * 200
    # None of them blocks a thread.
    assert set(looked) == {0}
