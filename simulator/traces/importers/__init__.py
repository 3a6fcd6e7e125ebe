"""One file per public layout: each has `read(path, options, progress) -> Imported` and nothing else public."""
