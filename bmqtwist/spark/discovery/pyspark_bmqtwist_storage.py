"""Registration of `format("bmq-storage")`: Spark discovers data sources in modules whose names begin with `pyspark_`.

Without the extra `spark` the module is empty, so that the discovery of other data sources does not fail. The data source
itself is in `spark/storage.py`.
"""

try:
    from bmqtwist.spark.storage import StorageDataSource as DefaultSource
except ImportError:
    __all__ = []
else:
    __all__ = ["DefaultSource"]
