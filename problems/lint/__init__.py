"""Whether a problem may be admitted: its contract, trivial candidates, honest noise."""
