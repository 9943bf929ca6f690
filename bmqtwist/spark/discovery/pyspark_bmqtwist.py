"""Registration of `format("bmq")`: Spark discovers data sources in modules whose names begin with `pyspark_`.

Without the extra `spark` the module is empty, so that the discovery of other data sources does not fail. The data source
itself is in `spark/source.py`.
"""

try:
    from bmqtwist.spark.source import QueueDataSource as DefaultSource
except ImportError:
    __all__ = []
else:
    __all__ = ["DefaultSource"]
