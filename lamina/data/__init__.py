"""Data sets in memory, streams, readers of common file formats, and a small data set.

Comes in: arrays, frames and files of the user. Leaves: checked arrays, one batch after another.
Nothing here knows a network. Read `dataset.py` first, then `stream.py`. `load.py` reads files of
arrays, `csv_text.py` tables.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.data.coding import Coding as Coding
    from lamina.data.csv_text import read_table as read_table
    from lamina.data.dataset import Dataset as Dataset
    from lamina.data.dataset import as_dataset as as_dataset
    from lamina.data.idx import digits as digits
    from lamina.data.idx import mnist as mnist
    from lamina.data.idx import read_idx as read_idx
    from lamina.data.learned_coding import from_frame as from_frame
    from lamina.data.load import load as load
    from lamina.data.on_disk import in_chunks as in_chunks
    from lamina.data.stream import Stream as Stream
