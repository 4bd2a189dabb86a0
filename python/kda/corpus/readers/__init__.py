"""Readers: bytes of the files that one source offers -> cleaned pairs and documents.

Each reader takes ``files`` (path inside the package -> bytes) and returns an ``Extract``. It
never touches the disk or the network, and treats every byte as untrusted.
"""
