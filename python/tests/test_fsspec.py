import os
import pickle

import pytest

fsspec = pytest.importorskip("fsspec")

from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

import forebay


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return fsspec.filesystem("forebay", auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, folder):
        return str(folder)


class TestCopy(AbstractCopyTests, Fixtures):
    pass


class TestGet(AbstractGetTests, Fixtures):
    pass


class TestPut(AbstractPutTests, Fixtures):
    pass


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass


def test_files_are_opened_by_the_library(folder):
    url = f"forebay://{folder}/file"
    with fsspec.open(url, "wb") as file:
        assert isinstance(file.raw, forebay.RawFile)
        file.write(b"bytes")
    fs = fsspec.filesystem("forebay")
    fs.wait(url, timeout=30)
    fs.prefetch(url)
    assert fs.cat(url) == b"bytes" and fs.unstrip_protocol(str(folder)) == f"forebay://{folder}"
    with pytest.raises(FileNotFoundError):
        fs.open(url + ".none")


def test_files_have_what_those_of_fsspec_have(folder):
    fs = fsspec.filesystem("forebay")
    path = str(folder / "file")
    fs.pipe_file(path, b"0123456789")
    assert fs.cat_file(path, start=-4) == b"6789" and fs.tail(path, 3) == b"789"
    with fs.open(path, "rb") as file:
        assert file.size == 10 and file.read(4) == b"0123"
        with pickle.loads(pickle.dumps(file)) as other:
            assert isinstance(other.raw, forebay.RawFile) and other.read() == b"456789"
        assert file.read(1) == b"4"
        got = bytearray(2)
        assert file.readinto(got) == 2 and got == b"56"
    with fs.open(path, "ab") as file:
        assert file.tell() == 10 and not file.readable() and file.write(b"!") == 1


@pytest.mark.parametrize("protocol", ["forebay", "file"])
def test_what_a_file_of_mode_r_plus_has_in_its_buffer_is_waited_for(folder, protocol):
    (folder / "file").write_bytes(b"0123456789")
    with fsspec.filesystem(protocol).open(str(folder / "file"), "r+b") as file:
        file.write(b"abc")
        forebay.wait(file, timeout=60)
        assert (folder / "file").read_bytes() == b"abc3456789"
        assert forebay.is_safe(file)


def test_transactions_show_all_files_or_none(folder):
    fs = fsspec.filesystem("forebay")
    with fs.transaction:
        with fs.open(f"{folder}/a", "wb") as file:
            file.write(b"x")
        assert not (folder / "a").exists()
    assert (folder / "a").read_bytes() == b"x"


def test_pandas_and_pyarrow(folder):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"a": range(1000), "b": [str(n) for n in range(1000)]})
    table.to_parquet(f"forebay://{folder}/t.parquet")
    assert pandas.read_parquet(f"forebay://{folder}/t.parquet").equals(table)
    table.to_csv(f"forebay://{folder}/t.csv", index=False)
    assert len(pandas.read_csv(f"forebay://{folder}/t.csv")) == 1000
    import pyarrow.dataset
    fs = fsspec.filesystem("forebay")
    assert pyarrow.dataset.dataset(str(folder / "t.parquet"), filesystem=fs).count_rows() == 1000


def test_xarray_and_zarr(folder):
    xarray, zarr = pytest.importorskip("xarray"), pytest.importorskip("zarr")
    import numpy
    field = xarray.Dataset({"t": (("x", "y"), numpy.random.default_rng(1).random((64, 64)))})
    field.to_zarr(f"{folder}/x.zarr", consolidated=False)
    assert xarray.open_zarr(f"{folder}/x.zarr", consolidated=False).load().equals(field)
    array = zarr.create_array(f"{folder}/z.zarr", shape=(100,), dtype="f8", chunks=(10,))
    array[:] = numpy.arange(100.0)
    assert zarr.open_array(f"{folder}/z.zarr", mode="r")[:].sum() == 4950


def test_addresses_of_pyarrow_and_zarr_are_those_that_the_page_names(folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    zarr = pytest.importorskip("zarr")
    import pyarrow

    table = pyarrow.table({"a": [1, 2, 3]})
    parquet.write_table(table, f"fsspec+forebay://{folder}/table.parquet")
    assert parquet.read_table(f"fsspec+forebay://{folder}/table.parquet") == table
    fs = fsspec.filesystem("forebay")
    assert parquet.read_table(f"{folder}/table.parquet", filesystem=fs) == table
    url = f"forebay://{folder}/array.zarr"
    array = zarr.open_array(
        url, mode="w", shape=(10,), chunks=(3,), dtype="i4", storage_options={"auto_mkdir": True}
    )
    array[:] = range(10)
    assert list(zarr.open_array(url, mode="r")[:]) == list(range(10))
