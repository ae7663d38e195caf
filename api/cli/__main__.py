"""`python -m api.cli`: the same as the `pkforge` command."""

from api.cli.main import main

main()
