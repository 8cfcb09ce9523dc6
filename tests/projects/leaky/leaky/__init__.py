"""It says when it was built."""
