"""One module per peer: its contenders, and which processes each needs where.  Pure: plans are data."""
