"""Modules that Spark finds by their names, `pyspark_*`, at the top of what is importable: wheels and shipped zips have them
there (setup.py, `local.py`). Elsewhere, in an editable install, `bmqtwist.spark.register(spark)` does the same.
"""
