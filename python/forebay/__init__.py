"""Forebay from Python, over its C library libforebay.so.0."""
