"""Right and wrong: the exact result, how near is near enough, and what a wrong one looks like."""
