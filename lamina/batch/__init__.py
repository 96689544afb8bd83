"""The arrays of a batch: their names, shapes and dtypes."""
