"""The report that `--out` keeps."""
