"""A program over mlbs.py: NumPy sees the elements without a copy, and they stay where they are."""

import sys

import numpy
from forebay.mlbs import ForebayError, MLBStore

ELEMENT, NO_RECORD, CLOSED = -10022, -10020, -10003


def fails(code, call, *given):
    try:
        call(*given)
    except ForebayError as error:
        assert error.code == code and len(str(error)) > 20, (error.code, str(error))
        return str(error)
    raise AssertionError(f"{code} was expected")


def main(directory):
    count, steps = 100_000, 40
    field = MLBStore("d", count, directory=directory, order="lifo", memory=8 * count * 4)
    view = numpy.asarray(field)
    assert view.dtype == numpy.float64 and view.shape == (count,)
    assert view.ctypes.data == field.buffer_info()[0], "a copy"
    for step in range(steps):
        view[:] = numpy.arange(count) + step
        field.write(step)
    for step in reversed(range(steps)):
        view[:] = -1
        field.read(step)
        assert (view == numpy.arange(count) + step).all(), step
    assert field[7] == 7.0 and len(field) == count and memoryview(field).format == "d"
    info = field.info()
    assert info["records"] == steps and info["reads"] == steps, info

    # Exported elements do not move.
    for change in (lambda: field.resize(count + 1), lambda: field.push_back(1.0), lambda: field.resize(3)):
        try:
            change()
        except BufferError:
            continue
        raise AssertionError("resized under a view")
    del view
    field.resize(count + 1)
    field.push_back(5.0)
    assert len(field) == count + 2 and field[-2:].tolist() == [0.0, 5.0]
    assert "100002" in fails(ELEMENT, field.read, 3)
    field.resize(field.record_size(3))
    field.read(3)
    assert "999" in fails(NO_RECORD, field.read, 999)
    field.drop(3)
    assert field.ids() == [step for step in range(steps) if step != 3] and field.torn() == []
    field.sync(4)
    field.will_read([1, 2])

    with MLBStore("f", 10, directory=directory, name="named") as single:
        single.write(2**64 - 1)
        with MLBStore("d", 5, directory=directory, name="named") as other:
            assert "elements of 4 bytes" in fails(ELEMENT, other.read, 2**64 - 1)
        for wrong in (-1, 2**64):
            try:
                single.write(wrong)
            except ValueError:
                continue
            raise AssertionError(wrong)
        for call, wrong in (
            (lambda: single.write("x"), TypeError),
            (lambda: single.write(1.5), TypeError),
            (lambda: single.will_read(["x"]), TypeError),
            (lambda: single.sync(2**64 - 1, "x"), TypeError),
            (lambda: single.sync(2**64 - 1, float("nan")), ValueError),
            (lambda: single.sync(2**64 - 1, -1), ValueError),
            (lambda: single.resize("x"), TypeError),
            (lambda: MLBStore("d", [1, 2], directory=directory), TypeError),
            (lambda: MLBStore("d", 1.0, directory=directory), TypeError),
            (lambda: MLBStore("d", -1, directory=directory), ValueError),
            (lambda: MLBStore("d", 1, directory=directory + "\0"), ValueError),
            (lambda: MLBStore("d", 1, directory=directory, name="a\0b"), ValueError),
            (lambda: MLBStore("d", 1, directory=directory, helpers=65), ValueError),
            (lambda: MLBStore("d", 1, directory=directory, helpers=2**32), ValueError),
            (lambda: MLBStore("d", 1, directory=directory, memory="x"), TypeError),
        ):
            try:
                call()
            except wrong as error:
                assert len(str(error)) > 10, error
                continue
            raise AssertionError(wrong)
        for limit in (None, float("inf"), 1e300, 2**70):
            single.sync(2**64 - 1, limit)
        with MLBStore("d", numpy.int64(3), directory=directory, helpers=numpy.uint8(0)) as sized:
            assert len(sized) == 3 and sized.tolist() == [0.0, 0.0, 0.0]
            sized.write(numpy.uint64(5))
            assert sized.ids() == [5]
        single.resize(3)
        single.write(1)
        with MLBStore("d", 5, directory=directory, name="named") as other:
            assert "12 bytes" in fails(ELEMENT, other.record_size, 1)
    fails(CLOSED, single.write, 1)
    fails(-22, lambda: MLBStore("d", 5, directory=directory, memory=0))
    fails(-2, lambda: MLBStore("d", 5, directory=directory + "/none"))
    # The container of `field` ends with the interpreter.
    print("done")


main(sys.argv[1])
