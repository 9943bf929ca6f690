"""Jobs over queues and storage files: `bmq pipeline NAME ...`, or `spark-submit -m`-like through each module's `main`."""
