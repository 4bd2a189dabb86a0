# One GPU image for training, evaluation, monitoring clients and tests: docs/containers.md.
# The steps themselves are in scripts/container_build.sh, which also runs without a container engine.
#
#   docker build -t kda .                                     CUDA 13.0, Ubuntu 24.04
#   docker build -t kda --build-arg BUILD_BASE=debian:12-slim --build-arg RUN_BASE=debian:12-slim .
#   docker build -t kda:test --target test .                  the tree with its tests, built
ARG BUILD_BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04
ARG RUN_BASE=nvidia/cuda:13.0.2-base-ubuntu24.04

FROM ${BUILD_BASE} AS build
ARG KDA_ROOT=/opt/kda
WORKDIR ${KDA_ROOT}
# What rarely changes first: compilers, torch, nvcc where the base has none.
COPY scripts/container_build.sh scripts/setup.sh scripts/setup_cuda.sh \
  scripts/build_sentencepiece.sh scripts/requirements.txt scripts/requirements-container.txt scripts/
RUN scripts/container_build.sh prepare
COPY . .
# The commit for `kda --version`: the context has no .git.
ARG KDA_COMMIT
ARG KDA_CUDA_ARCHS=80-real;90a-real;100a-real;120a-real
RUN --mount=type=cache,target=/root/.cache/ccache \
  scripts/container_build.sh build

FROM build AS test
RUN --mount=type=cache,target=/root/.cache/ccache \
  scripts/container_build.sh tests
CMD ["scripts/test.sh", "build/image"]

FROM build AS packed
RUN scripts/container_build.sh pack image

FROM ${RUN_BASE} AS run
ARG KDA_ROOT=/opt/kda
ARG KDA_UID=1000
COPY scripts/container_build.sh /usr/local/lib/kda/
RUN /usr/local/lib/kda/container_build.sh runtime
COPY --from=packed ${KDA_ROOT}/.venv ${KDA_ROOT}/.venv
COPY --from=packed ${KDA_ROOT}/image ${KDA_ROOT}/image
# Caches live in volumes (compose.yaml); drivers come from the host through the container toolkit.
ENV PATH=${KDA_ROOT}/image/bin:${KDA_ROOT}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  KDA_PYTHON=${KDA_ROOT}/.venv/bin/python \
  HF_HOME=/cache/huggingface \
  XDG_CACHE_HOME=/cache \
  NVIDIA_VISIBLE_DEVICES=all \
  NVIDIA_DRIVER_CAPABILITIES=compute,utility \
  LANG=C.UTF-8
WORKDIR /workspace/kda
USER kda
# Nothing starts by itself: the usage of every entry, exit code 2.
CMD ["container_help"]
