"""wheelmill: a reproducible builder of CUDA wheels for Python."""

__version__ = "0.1.0"
