"""The problems that ship with the project, one file each."""
