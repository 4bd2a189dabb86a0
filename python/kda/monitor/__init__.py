"""Dashboards for a run: TensorBoard, SwanLab and Weights & Biases, fed from its metrics.jsonl.

Training knows nothing of them. Its log is the only truth, and an exporter can be started during the
run, after it, or again: what it wrote before it neither repeats nor loses. See docs/monitoring.md.
"""
