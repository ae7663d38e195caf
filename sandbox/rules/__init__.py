"""What a candidate may contain, by language: its text before it is built, its object file after.

`scan` reads source, `objects` what the compiler made of it. The first line of defence, not the only
one: whoever gets past it is still in a sandbox, compared and timed.
"""
