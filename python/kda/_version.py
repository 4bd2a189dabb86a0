"""Version of the package; equal to the version of the library it loads."""

__version__ = "0.1.0"
