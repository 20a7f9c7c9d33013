"""`ffkv explore`: finished runs as pages in a browser."""
