"""Text corpora for training: real Chinese and English text from distribution packages, the
user's own files, or a small offline text. Run as ``python -m kda.corpus``; see docs/data.md.

Needs no native library. Parsers: lxml, opencc; pyarrow for .parquet input only.
"""
