"""Whole files on disk: written under a temporary name, with checksums; HDF5 and tables."""
