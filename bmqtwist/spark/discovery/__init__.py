"""Modules for Spark's discovery by name, `pyspark_*`: wheels and zips have them at top level (setup.py, `local.py`). In an
editable install call `bmqtwist.spark.register(spark)` instead.
"""
