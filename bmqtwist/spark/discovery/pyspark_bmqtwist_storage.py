"""Spark finds data sources in modules whose names begin with `pyspark_`: this makes `format("bmq-storage")` known.

Where the extra `spark` is not installed there is nothing to be found, and other data sources are not to suffer from it.
"""

try:
    from bmqtwist.spark.storage import StorageDataSource as DefaultSource
except ImportError:
    __all__ = []
else:
    __all__ = ["DefaultSource"]
