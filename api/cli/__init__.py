"""The `pkforge` command line. Modules here stay cheap to import: commands import what they need."""
