"""``kda report``: one HTML page about one or several runs, complete in itself."""
