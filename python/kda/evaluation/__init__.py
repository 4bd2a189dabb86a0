"""Tools around ``kda eval mt``: sacreBLEU scores, language detection, export of FLORES.

``python -m kda.evaluation`` is what the program calls; no native library is needed.
"""
