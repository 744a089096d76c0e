"""From data files to token shards: read rows, recognise their format, supervise, write."""
