"""Functions on a Dask cluster."""
