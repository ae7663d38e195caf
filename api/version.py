"""The version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("pkforge")
except PackageNotFoundError:
    VERSION = "0+unknown"
