"""Tests run where the process is: under `forebay run` in a buffered directory, and plainly."""

import os
import pathlib
import uuid

import pytest

BUFFERED = os.environ["FOREBAY_TEST_KIND"] == "buffered"


@pytest.fixture
def folder():
    path = pathlib.Path.cwd() / f"t-{uuid.uuid4().hex}"
    path.mkdir()
    return path


@pytest.fixture
def buffered():
    if not BUFFERED:
        pytest.skip("needs forebay run")
