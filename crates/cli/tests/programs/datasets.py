"""Datasets by three libraries of one process, each with an HDF5 of its own: datasets.py write|read."""

import sys
import zlib

import h5py
import netCDF4
import numpy as np
import tables

cube = (np.arange(128 * 128 * 64, dtype="f4") * 7.3).reshape(64, 128, 128)


def by_h5py(mode):
    with h5py.File("h5py.h5", mode) as file:
        if mode == "w":
            plain = file.create_dataset("fields/rho", cube.shape, "f4")
            chunked = file.create_dataset("fields/u", cube.shape, "f4", chunks=(8, 128, 128))
            packed = file.create_dataset("packed", cube.shape, "f4", chunks=(8, 128, 128), compression="gzip")
            for z in range(0, 64, 4):
                plain[z : z + 4] = chunked[z : z + 4] = packed[z : z + 4] = cube[z : z + 4]
        return [file[name][...] for name in ("fields/rho", "fields/u", "packed")]


def by_netcdf(mode):
    with netCDF4.Dataset("netcdf.nc", mode) as file:
        if mode == "w":
            for name, size in zip("zyx", cube.shape):
                file.createDimension(name, None if name == "z" else size)
            variable = file.createVariable("temperature", "f4", ("z", "y", "x"), chunksizes=(8, 128, 128))
            for z in range(0, 64, 8):
                variable[z : z + 8] = cube[z : z + 8]
                file.sync()
        return [np.asarray(file["temperature"][...])]


def by_tables(mode):
    with tables.open_file("tables.h5", mode) as file:
        if mode == "w":
            file.create_array("/", "plain", cube, track_times=False)
            array = file.create_earray("/", "grown", tables.Float32Atom(), (0, 128, 128), chunkshape=(8, 128, 128), track_times=False)
            for z in range(0, 64, 4):
                array.append(cube[z : z + 4])
        return [file.root.plain.read(), file.root.grown.read()]


mode = {"write": "w", "read": "r"}[sys.argv[1]]
for turn in (by_h5py, by_netcdf, by_tables):
    for found in turn(mode):
        print(turn.__name__, zlib.crc32(found.tobytes()), (found == cube).all())
