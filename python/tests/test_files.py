import asyncio
import errno
import io

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
    assert caught.value.errno == errno.ENOENT and "none" in str(caught.value)
    with pytest.raises(IsADirectoryError):
        forebay.open(folder, "rb")
    with pytest.raises(IsADirectoryError):
        forebay.open(folder, "wb")
    for words in [("x", "q"), ("x", "rbt"), ("x", "r", 0)]:
        with pytest.raises((ValueError, FileNotFoundError)):
            forebay.open(folder / words[0], *words[1:])
    session = forebay.session()
    file = session.open(folder / "file", "wb", 0)
    session.close()
    with pytest.raises(forebay.HandleClosed):
        file.write(b"x")
    with pytest.raises(OSError):
        file.close()
    assert file.closed
    with pytest.raises(ValueError):
        file.write(b"x")


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


def test_pins_say_what_they_need():
    if BUFFERED:
        pytest.skip("is for plain runs")
    with forebay.open(__file__, "rb") as file, pytest.raises(forebay.NotRunning):
        forebay.pin(file)
