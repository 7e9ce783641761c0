import time

import pytest
from conftest import BUFFERED

import forebay


def until(check):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if check():
            return
        time.sleep(0.02)
    raise AssertionError("it never came")


def test_without_forebay_nothing_is_registered(folder):
    if BUFFERED:
        pytest.skip("needs a plain run")
    for call in (
        lambda: forebay.analyse("*", ["true"]), lambda: forebay.operate("*", "compress"),
        lambda: forebay.remove_action("a"), forebay.actions, lambda: forebay.action("a"),
    ):
        with pytest.raises(forebay.NotRunning, match="forebay run"):
            call()


def test_an_analysis_runs_and_its_result_is_there(buffered, folder):
    name = f"size-{folder.name}"
    match = f"{folder.name}/*.dat"
    forebay.analyse(match, ["wc", "-c", "{file}"], name=name, timeout=60, results=folder)
    assert name in forebay.actions()
    found = forebay.action(name)
    assert (found.name, found.match) == (name, match)
    assert not found.is_operation and not found.is_configured
    with forebay.open(folder / "file.dat", "wb") as file:
        file.write(b"12345")
    until(lambda: forebay.action(name).done == 1)
    assert (folder / f"file.dat.{name}.out").read_text().split()[0] == "5"
    assert forebay.action(name).failure == ""
    forebay.remove_action(name)
    assert name not in forebay.actions()
    with pytest.raises(FileNotFoundError, match=name):
        forebay.remove_action(name)


def test_an_operation_runs_and_its_result_is_there(buffered, folder):
    name = f"sort-{folder.name}"
    match = f"{folder.name}/*.dat"
    forebay.operate(match, "sort", name=name, record=4, key="u32@0:desc", patience=0.001)
    assert forebay.action(name).is_operation
    (folder / "file.dat").write_bytes(b"aaaabbbb")
    until(lambda: forebay.action(name).done == 1)
    assert (folder / "file.dat.sorted").read_bytes() == b"bbbbaaaa"
    forebay.remove_action(name)


def test_what_cannot_be_registered_is_named(buffered, folder):
    before = forebay.actions()
    with pytest.raises(TypeError, match="list of words"):
        forebay.analyse("*", "cat {file}")
    for arguments, said in (
        (dict(match="[", command=["true"]), "match"),
        (dict(match="*", command=[]), "command: is empty"),
        (dict(match="*", command=["true"], may_drop=True), "needs drain"),
        (dict(match="*", command=["true"], timeout=-1), "timeout"),
    ):
        with pytest.raises(OSError, match=said) as raised:
            forebay.analyse(**arguments)
        assert raised.value.errno == 22
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        forebay.analyse("*", ["no-such-program"])
    with pytest.raises(ValueError, match="null byte"):
        forebay.analyse("a\0b", ["true"])
    with pytest.raises(ValueError, match="close, step"):
        forebay.analyse("*", ["true"], on="open")
    with pytest.raises(OSError, match="record is no option"):
        forebay.operate("*", "compress", record=8)
    assert forebay.actions() == before
