"""Files of any format: atomic writes, JSON, suffixes, locks, and the paths of results."""
