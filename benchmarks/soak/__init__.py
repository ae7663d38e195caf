"""Many evaluations in a row, some hostile, several at a time: what is left behind."""
