#!/usr/bin/env bash
# What a container says when it is started without a command. Exit code 2: nothing was done.
cat <<'TEXT'
kda: Kimi Delta Attention, training and inference. Say what to run:

  docker run --rm --gpus all [-e SWANLAB_API_KEY] [-v "$PWD/data:/workspace/kda/data"]
    [-v "$PWD/runs:/workspace/kda/runs"] kda:latest ENTRY ...

Entries:
  kda COMMAND ...                  the program; its commands are below
  python -m kda.monitor ...        exporters of a run's metrics: tensorboard, swanlab, wandb, ping
  python -c "import kda; ..."      the operator in Python, with torch
  bash                             a shell

Folders: data, runs and ckpts below /workspace/kda, caches in /cache. Keys come from the environment
only. Nothing of these is inside the image.

TEXT
kda --help
exit 2
